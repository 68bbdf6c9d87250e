// The source of a calibration's pages: case files, or a running server.
//
// A fit goes over its pages several times. So it visits a source once a pass, and the source gives
// the same pages each time. A source holds no more than a batch of them. Not thread-safe.
#ifndef KVSTOW_CLIENT_CLI_PAGE_SOURCE_H_
#define KVSTOW_CLIENT_CLI_PAGE_SOURCE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/cli.h"
#include "kernels/codec/codec.h"
#include "kernels/page/page.h"

namespace kvstow::cli {

class PageSource {
 public:
  using Visit = std::function<absl::Status(const PageToEncode&)>;

  virtual ~PageSource() = default;
  virtual const KvSpec& spec() const = 0;
  virtual size_t size() const = 0;               // number of things in a pass
  virtual absl::string_view things() const = 0;  // "cases"
  // Visits every page. Ends early with the error of `visit`. `progress` gets the number of things
  // that are done.
  virtual absl::Status ForEach(const Visit& visit,
                               const std::function<void(size_t)>& progress) const = 0;
};

// Makes a source of cases, which must all be of one model. With `with_queries`, the last page of
// each case comes with the distribution of the case's queries, where it has some.
absl::StatusOr<std::unique_ptr<PageSource>> CasesAsSource(std::vector<std::string> paths,
                                                          bool with_queries);

// Makes a source of at most `max_pages` of a space, spread over all that it has. Fails with
// NOT_FOUND when the space has none. A pass leaves out pages that have gone, and fails with
// NOT_FOUND when more than half of them have.
absl::StatusOr<std::unique_ptr<PageSource>> SpaceAsSource(const ServerFlags& server,
                                                          const std::string& space,
                                                          uint32_t max_pages);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PAGE_SOURCE_H_
