#include "client/planner/profile.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace kvstow::planner {
namespace {

constexpr uint64_t kMaxBlocks = 100'000'000;

struct Profile {
  double sessions = -1, turns = -1, prompt = -1, rate = -1;  // -1 = not given
  double shared = 0, output = 0, think = 0, block = 512, seed = 1;
};

struct Field {
  const char* name;
  double Profile::*value;
  double low, high;
  bool whole;
};

constexpr Field kFields[] = {
    {"sessions", &Profile::sessions, 1, 1e7, true}, {"turns", &Profile::turns, 1, 1e5, true},
    {"shared", &Profile::shared, 0, 1e7, true},     {"prompt", &Profile::prompt, 1, 1e7, false},
    {"output", &Profile::output, 0, 1e7, false},    {"rate", &Profile::rate, 1e-6, 1e6, false},
    {"think", &Profile::think, 0, 1e7, false},      {"block", &Profile::block, 1, 65536, true},
    {"seed", &Profile::seed, 0, 1e9, true},
};

absl::Status Wrong(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("profile: ", field, " ", what));
}

absl::StatusOr<Profile> Parse(absl::string_view text) {
  Profile profile;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(pair.first);
    const auto field = std::find_if(std::begin(kFields), std::end(kFields),
                                    [&](const Field& f) { return name == f.name; });
    if (field == std::end(kFields)) {
      return Wrong(absl::StrCat("'", name, "'"),
                   "is not a field; write for example "
                   "sessions=200,turns=5,shared=1024,prompt=2000,output=300,rate=0.5,think=30");
    }
    double value = 0;
    if (!absl::SimpleAtod(pair.second, &value) || !(value >= field->low) ||
        !(value <= field->high) || (field->whole && value != std::floor(value))) {
      return Wrong(name, absl::StrCat("is '", pair.second, "'; it must be ",
                                      field->whole ? "an integer" : "a number", " from ",
                                      field->low, " to ", field->high));
    }
    profile.*(field->value) = value;
  }
  for (const Field& field : kFields) {
    if (profile.*(field.value) < 0) return Wrong(field.name, "is missing");
  }
  return profile;
}

// Exponentially distributed. Not std::exponential_distribution, whose numbers differ between
// libraries.
class Exponential {
 public:
  explicit Exponential(uint64_t seed) : bits_(seed) {}
  double operator()(double mean) {
    return -mean * std::log1p(-static_cast<double>(bits_() >> 11) * 0x1p-53);
  }

 private:
  std::mt19937_64 bits_;
};

// Block after block of one chain of prefixes.
void Extend(Trace& trace, uint64_t blocks, std::vector<uint64_t>& chain) {
  while (chain.size() < blocks) {
    trace.parents.push_back(chain.empty() ? Trace::kNoParent : static_cast<uint32_t>(chain.back()));
    chain.push_back(trace.parents.size() - 1);
  }
}

absl::Status TooLarge() {
  return Wrong("sessions x turns", absl::StrCat("is a load of more than ", kMaxBlocks, " blocks"));
}

// On average, before any is made.
double ExpectedBlocks(const Profile& p) {
  const double history = p.shared + (p.turns + 1) / 2 * p.prompt + (p.turns - 1) / 2 * p.output;
  return p.sessions * p.turns * (history / p.block);
}

absl::Status AddSession(const Profile& p, double session, double start_s,
                        const std::vector<uint64_t>& prefix, Exponential& draw, Trace& trace) {
  const auto tokens = [&](double mean) { return static_cast<uint64_t>(std::ceil(draw(mean))); };
  const auto block = static_cast<uint64_t>(p.block);
  std::vector<uint64_t> chain = prefix;  // full blocks of the history
  auto history = static_cast<uint64_t>(p.shared);
  for (double turn = 0; turn < p.turns; ++turn) {
    const uint64_t input = history + std::max<uint64_t>(1, tokens(p.prompt));
    const uint64_t output = tokens(p.output);
    if (input > UINT32_MAX || output > UINT32_MAX)
      return Wrong("prompt", "grows beyond 2^32 tokens");
    trace.references += (input + block - 1) / block;
    if (trace.references > kMaxBlocks) return TooLarge();
    Extend(trace, input / block, chain);
    TraceRequest request{.time_s = start_s,
                         .input_tokens = static_cast<uint32_t>(input),
                         .output_tokens = static_cast<uint32_t>(output),
                         .blocks = chain,
                         .session = static_cast<int64_t>(session)};
    if (input % block != 0) Extend(trace, chain.size() + 1, request.blocks);  // no prompt's but its
    trace.requests.push_back(std::move(request));
    history = input + output;
    start_s += draw(p.think);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Trace> TraceOfProfile(absl::string_view text) {
  KVSTOW_ASSIGN_OR_RETURN(const Profile p, Parse(text));
  if (ExpectedBlocks(p) > kMaxBlocks) return TooLarge();
  Trace trace{.block_tokens = static_cast<uint32_t>(p.block)};
  Exponential draw(static_cast<uint64_t>(p.seed));
  std::vector<uint64_t> prefix;
  Extend(trace, static_cast<uint64_t>(p.shared / p.block), prefix);
  double start_s = 0;
  for (double session = 0; session < p.sessions; ++session) {
    KVSTOW_RETURN_IF_ERROR(AddSession(p, session, start_s, prefix, draw, trace));
    start_s += draw(1 / p.rate);
  }
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const TraceRequest& a, const TraceRequest& b) { return a.time_s < b.time_s; });
  return trace;
}

}  // namespace kvstow::planner
