// Pages as requests and answers of a local session.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_LOCAL_PAGES_H_
#define KVSTOW_CLIENT_LOCAL_PAGES_H_

#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "client/client_core.h"
#include "client/pages.h"
#include "kvstow/v1/local.pb.h"

namespace kvstow {

// Asks the server where sessions are opened. Blocks at most the timeout.
absl::StatusOr<v1::OpenLocalResponse> AskForLocal(ClientCore& core);

// The request for page `i` of a batch, without its number and its place.
v1::LocalGetPage LocalRequestOf(std::span<const PageGet> pages, size_t i);
v1::LocalPutPage LocalRequestOf(std::span<const PagePut> pages, size_t i);

// What came of a page. No value: the answer needs a stream, which it does when the bytes in the
// page's place, or its list of kept tokens, are not what their digest says. What a GPU has in its
// memory is not read here.
std::optional<GetResult> ResultOf(const PageGet& page, const v1::LocalReply& reply);
std::optional<PutResult> ResultOf(const PagePut& page, const v1::LocalReply& reply);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_LOCAL_PAGES_H_
