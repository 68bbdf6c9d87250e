#include "kernels/page/page_digests.h"

#include <algorithm>
#include <utility>

namespace kvstow {

// The first run is all of the page so far, and needs no stream of its own.
void PageDigester::EndRun() {
  runs_.push_back(runs_.empty() ? page_.Finish64() : run_.Finish64());
  run_ = Xxh3Stream();
  left_ = run_bytes_;
}

void PageDigester::Update(std::span<const uint8_t> piece) {
  if (run_bytes_ == 0) return page_.Update(piece);
  while (!piece.empty()) {
    const auto of_run = piece.first(std::min(piece.size(), left_));
    page_.Update(of_run);
    if (!runs_.empty()) run_.Update(of_run);
    left_ -= of_run.size();
    if (left_ == 0) EndRun();
    piece = piece.subspan(of_run.size());
  }
}

PageDigests PageDigester::Finish() {
  if (left_ < run_bytes_) EndRun();
  return {page_.Finish(), std::move(runs_)};
}

}  // namespace kvstow
