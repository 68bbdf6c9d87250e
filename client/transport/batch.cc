#include "client/transport/batch.h"

#include "client/payload/messages.h"

namespace kvstow {

void AnswerMissing(GetBatch& batch, const absl::Status& status) {
  for (const size_t i : batch.Missing()) {
    batch.Answer(i, OutcomeOfFailedGet(status), status.message());
  }
}

void AnswerMissing(PutBatch& batch, const absl::Status& status) {
  for (const size_t i : batch.Missing()) {
    batch.Answer(i, OutcomeOfFailedPut(status), status.message());
  }
}

}  // namespace kvstow
