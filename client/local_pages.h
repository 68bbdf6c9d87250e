// Converts pages to requests of a local session, and its answers to results.
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

// Asks the server where to open a session. Blocks at most the timeout.
absl::StatusOr<v1::OpenLocalResponse> AskForLocal(ClientCore& core);

// Return the request for page `i` of a batch, without its number and its place.
v1::LocalGetPage LocalRequestOf(std::span<const PageGet> pages, size_t i);
v1::LocalPutPage LocalRequestOf(std::span<const PagePut> pages, size_t i);

// Return the result of a page; no value when the page needs a stream. It does when the answer is
// NOT_COMPATIBLE, when it does not fit the page, and when the bytes in the page's place, or its
// list of kept tokens, do not match their digest. These functions do not read the memory of a GPU.
std::optional<GetResult> ResultOf(const PageGet& page, const v1::LocalReply& reply);
std::optional<PutResult> ResultOf(const PagePut& page, const v1::LocalReply& reply);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_LOCAL_PAGES_H_
