// The files of the status page, service/ops/page/*, which the build makes part of the program.
#ifndef KVSTOW_SERVICE_OPS_PAGE_FILES_H_
#define KVSTOW_SERVICE_OPS_PAGE_FILES_H_

#include "absl/strings/string_view.h"

namespace kvstow {

struct EmbeddedFile {
  absl::string_view path;  // "/page.css"
  absl::string_view type;  // "text/css; charset=utf-8"
  absl::string_view text;
};

// Returns the file of that path, or null. Thread-safe.
const EmbeddedFile* PageFile(absl::string_view path);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_PAGE_FILES_H_
