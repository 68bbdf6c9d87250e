// Where a calibration's pages come from: case files, or a running server.
//
// A fit goes over its pages several times, so a source is visited once a pass and gives the same
// pages each time; it holds no more than a batch of them. Not thread-safe.
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
  virtual size_t size() const = 0;               // things that a pass goes over
  virtual absl::string_view things() const = 0;  // "cases"
  // Ends early with what `visit` fails with. `progress` is told how many things are done.
  virtual absl::Status ForEach(const Visit& visit,
                               const std::function<void(size_t)>& progress) const = 0;
};

// All of them must be of one model. `with_queries`: the last page of each case comes with the
// distribution of its queries, where it has some.
absl::StatusOr<std::unique_ptr<PageSource>> CasesAsSource(std::vector<std::string> paths,
                                                          bool with_queries);

// At most `max_pages` of a space, spread over all that it has. Pages that go while this runs are
// left out; NOT_FOUND when there are none, or when half of them have gone.
absl::StatusOr<std::unique_ptr<PageSource>> SpaceAsSource(const ServerFlags& server,
                                                          const std::string& space,
                                                          uint32_t max_pages);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PAGE_SOURCE_H_
