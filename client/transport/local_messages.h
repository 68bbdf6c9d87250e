// Converts pages to requests of a local session, and its answers to results.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_TRANSPORT_LOCAL_MESSAGES_H_
#define KVSTOW_CLIENT_TRANSPORT_LOCAL_MESSAGES_H_

#include <optional>
#include <span>

#include "client/pages.h"
#include "client/transport/batch.h"
#include "kvstow/v1/local.pb.h"

namespace kvstow {

// Return the request for page `i` of a batch, without its number and its place.
v1::LocalGetPage LocalRequestOf(const GetBatch& batch, size_t i);
v1::LocalPutPage LocalRequestOf(const PutBatch& batch, size_t i);

// Return the result of a page; no value when the page needs a stream. It does when the answer is
// NOT_COMPATIBLE, when it does not fit the page, and when the bytes in the page's place, or its
// list of kept tokens, do not match their digest. These functions do not read the memory of a GPU.
std::optional<GetResult> ResultOf(const PageGet& page, const v1::LocalReply& reply);
std::optional<PutResult> ResultOf(const PagePut& page, const v1::LocalReply& reply);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_LOCAL_MESSAGES_H_
