// The tokens of a model's vocabulary, and section `vocabulary` of a calibration blob
// (calibration.h).
//
// K and V of a token depend on which token it is. In SmolLM2-135M that foretells 60 % of their
// variance in the first layers, and a quarter in the last ones. So the joint transform
// (methods/joint_run_codec.h) codes only what is left where it knows the token:
//
//   x = mean + means * features of the token + rest
//
// V of the first layer depends on nothing but the token. A short signature of it finds the token,
// also in a lossy page: a worker need not send any token. The page's header then has the tokens.
// `kvstow-calibrate` makes signatures and features. It runs the model on each token alone; the
// features are the leading principal components of the K and V that come out.
//
// Immutable: thread-safe. docs/FORMAT.md has the bytes.
#ifndef KVSTOW_KERNELS_CALIBRATION_VOCABULARY_H_
#define KVSTOW_KERNELS_CALIBRATION_VOCABULARY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/page/page.h"
#include "kernels/transform/dense_product.h"

namespace kvstow {

inline constexpr absl::string_view kVocabularySection = "vocabulary";
inline constexpr uint32_t kMaxTokenFeatures = 1024;
inline constexpr uint32_t kMaxSignature = 64;

class Vocabulary {
 public:
  // What a vocabulary is made of. A token's signature is `projection` times V of the first layer.
  struct Parts {
    uint32_t tokens = 0;
    std::vector<float> projection;  // [size of a signature, kv_heads * head_dim_v]
    std::vector<float> signatures;  // [tokens, size of a signature]
    std::vector<float> features;    // [tokens, features]
  };
  // Rounds signatures to fp16, and each feature to 8 bits of its largest magnitude. Fails with
  // INVALID_ARGUMENT for sizes that do not fit each other or the shape, and for values that are not
  // finite.
  static absl::StatusOr<std::shared_ptr<const Vocabulary>> Make(const CalibrationShape& shape,
                                                                const Parts& parts);

  uint32_t tokens() const { return tokens_; }
  uint32_t features() const { return features_; }
  // Values of a row of Features.
  size_t width() const { return features_ + 1; }
  uint32_t signature() const { return signature_; }  // values of a signature
  // The matrices of Parts, as they are stored.
  std::span<const float> projection() const { return projection_; }
  std::span<const float> signatures() const { return signatures_; }
  std::span<const int8_t> codes() const { return codes_; }  // of features
  // The squared distance from a signature below which Find knows its token.
  float most_distance() const { return most_distance_; }

  // Returns which tokens a raw page has, kUnknownToken where no signature is near.
  std::vector<TokenId> Find(const KvSpec& spec, std::span<const uint8_t> raw,
                            uint32_t tokens) const;
  // Writes the features of tokens and a 1, [ids.size(), width()]. A token that is not known, or not
  // of this vocabulary, has zeros.
  void Features(std::span<const TokenId> ids, float* out) const;

  void Put(ByteWriter& out) const;
  // Fails with DATA_LOSS.
  static absl::StatusOr<std::shared_ptr<const Vocabulary>> Read(const CalibrationShape& shape,
                                                                ByteReader& in);

 private:
  Vocabulary() = default;
  // Makes what Find needs out of the signatures.
  void Index(size_t v_width);
  TokenId Nearest(const float* signature) const;

  uint32_t tokens_ = 0, features_ = 0, signature_ = 0;
  std::vector<float> projection_;                    // as in Parts
  std::vector<uint16_t> halves_;                     // signatures
  std::vector<int8_t> codes_;                        // features
  PackedMatrix project_;                             // [kv_heads * head_dim_v, signature]
  std::vector<float> signatures_;                    // of halves_
  float most_distance_ = 0;                          // squared, at which a token is still known
  std::vector<std::pair<float, TokenId>> by_first_;  // by the first value of the signature
};

// What the tokens of a run of layers foretell.
struct VocabularyRun {
  // [Vocabulary::width(), width of the run], for rows of Features.
  PackedMatrix means;
  // [Vocabulary::features()]: the token's part of the logarithm of its sensitivity
  // (token_importance.h); for all runs or for none.
  std::vector<float> importance;
};
// The same as it is fitted and stored, in fp16. Each row has a scale.
struct VocabularyRunData {
  std::vector<float> scales;
  std::vector<uint16_t> halves;
  std::vector<float> importance;
};

// Returns what a page's header has of its tokens: `ids`, or none where no token is known.
std::vector<TokenId> HeaderIds(std::vector<TokenId> ids);

struct VocabularyTables final : CalibratedTables {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::vector<VocabularyRun> runs;
};
// Returns the section of a calibration, which lives as long as that; null without one.
const VocabularyTables* VocabularyOf(const Calibration& calibration);

CalibrationSection VocabularySection(const Vocabulary& vocabulary,
                                     std::span<const VocabularyRunData> runs);
// The section's parser (codec/calibrate.h).
absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseVocabularyTables(
    const CalibrationShape& shape, std::span<const uint8_t> body);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_VOCABULARY_H_
