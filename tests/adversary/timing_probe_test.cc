// Does the time of a look-up tell whether another tenant holds a prompt? A probe times look-ups of
// prompts that the other tenant holds and of prompts that nobody holds, in random order, and says
// how well the times tell the two apart: the area under the ROC curve, .5 = not at all, 1 = always.
//
// A space that is shared shows what an undefended server would tell. CI runs a few probes and
// checks the answers alone; KVSTOW_TIMING_PROBES asks for more, and then for the areas too.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "proto/wire/spec.h"
#include "tests/service/access/tenants.h"

namespace kvstow::testing {
namespace {

constexpr uint32_t kPages = 256;
constexpr int kRepeats = 5;  // of a look-up; the least time counts: a prober may ask again

Time Soon() { return Clock::Real().Now() + std::chrono::seconds(20); }

KvSpec TinySpec() {
  KvSpec spec{.model = "tiny", .revision = "1", .layers = 2, .kv_heads = 1, .page_tokens = 4};
  spec.head_dim_k = spec.head_dim_v = 8;
  return spec;
}

// The chance that a time of the first kind is longer than one of the second.
double AreaUnderRoc(const std::vector<double>& held, const std::vector<double>& absent) {
  std::vector<std::pair<double, bool>> all;
  for (const double t : held) all.emplace_back(t, true);
  for (const double t : absent) all.emplace_back(t, false);
  std::ranges::sort(all);
  double ranks = 0;
  for (size_t i = 0; i < all.size();) {
    size_t end = i;
    while (end < all.size() && all[end].first == all[i].first) ++end;
    const double rank = (static_cast<double>(i + end) + 1) / 2;  // of equal ones, the mean
    for (; i < end; ++i) ranks += all[i].second ? rank : 0;
  }
  const auto n = static_cast<double>(held.size()), m = static_cast<double>(absent.size());
  return (ranks - n * (n + 1) / 2) / (n * m);
}

class TimingProbeTest : public TenantsTest {
 protected:
  ~TimingProbeTest() override { StopServer(); }

  void Open(const std::string& person, const std::string& space) {
    v1::OpenSpaceRequest request;
    request.set_space(space);
    request.set_recipe("raw");
    ToProto(TinySpec(), *request.mutable_spec());
    v1::OpenSpaceResponse response;
    WireClient& client = As(person);
    const auto status = client.kv().OpenSpace(client.Context().get(), request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    Fingerprints::All().Note(space, response.fingerprint());
  }
  static std::string Key(const std::string& who, uint32_t prompt, uint32_t page) {
    return absl::StrCat(who, "/", prompt, "/", page);
  }
  void PutPrompts(const std::string& person, const std::string& space) {
    for (uint32_t prompt = 0; prompt < prompts_; ++prompt) {
      std::vector<PageIn> pages;
      for (uint32_t p = 0; p < kPages; ++p) {
        pages.push_back({.key = Key(person, prompt, p),
                         .raw = RandomPage(TinySpec(), 4, p),
                         .tokens = 4,
                         .first_position = p * 4});
      }
      ASSERT_TRUE(As(person).Put(space, pages).status.ok());
    }
  }
  DirectSocket ConnectAs(const std::string& person) {
    v1::OpenDirectResponse offer;
    EXPECT_TRUE(As(person).kv().OpenDirect(As(person).Context().get(), {}, &offer).ok());
    DirectSocket out = *DirectSocket::Connect("127.0.0.1", static_cast<int>(offer.port()), Soon());
    v1::DirectRequest hello;
    hello.mutable_hello()->set_ticket(offer.ticket());
    EXPECT_TRUE(out.Send(hello, {}, 0, Soon()).ok());
    return out;
  }
  // Microseconds of a look-up of a prompt, and the pages that it found.
  static std::pair<double, uint32_t> Time(const DirectSocket& socket, const std::string& space,
                                          const std::string& who, uint32_t prompt) {
    v1::LookupRequest lookup;
    NameSpace(space, lookup);
    for (uint32_t p = 0; p < kPages; ++p) lookup.add_keys(Key(who, prompt, p));
    v1::DirectRequest request;
    lookup.SerializeToString(request.mutable_lookup());
    v1::DirectReply reply;
    uint64_t bytes = 0;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(socket.Send(request, {}, 0, Soon()).ok());
    EXPECT_TRUE(socket.ReceiveFrame(reply, bytes, Soon()).ok());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    v1::LookupResponse found;
    EXPECT_TRUE(found.ParseFromString(reply.looked_up())) << reply.refused().message();
    return {took.count(), found.pages()};
  }
  // Probes as `b` for prompts of a.worker in a space; each that is held finds `expected` pages.
  double Probe(const std::string& space, size_t probes, uint32_t expected) {
    const DirectSocket socket = ConnectAs("b.worker");
    std::mt19937 random(7);
    std::vector<double> held, absent;
    for (size_t i = 0; i < 2 * probes; ++i) {
      const bool is_held = random() % 2 == 0;
      // Names of the same length; a prompt that nobody holds is asked for as often as one that is.
      const uint32_t prompt = random() % prompts_;
      double least = 1e9;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        const auto [us, pages] = Time(socket, space, is_held ? "a.worker" : "a.nobody", prompt);
        EXPECT_EQ(pages, is_held ? expected : 0u);
        least = std::min(least, us);
      }
      (is_held ? held : absent).push_back(least);
    }
    return AreaUnderRoc(held, absent);
  }

  uint32_t prompts_ = 0;
};

TEST_F(TimingProbeTest, LookUpsOfAnotherTenantsPromptsTakeNoOtherTime) {
  const char* const asked = std::getenv("KVSTOW_TIMING_PROBES");
  const size_t probes = asked == nullptr ? 50 : std::strtoull(asked, nullptr, 10);
  // What is asked for is sampled by its hash, for the estimate of reuse. So a prompt has a time of
  // its own, and many prompts are needed to tell that from what others hold.
  prompts_ = asked == nullptr ? 8 : 96;
  StartServer();
  Open("a.worker", "docs");
  Open("a.worker", "s");
  Open("b.worker", "s");
  PutPrompts("a.worker", "docs");
  PutPrompts("a.worker", "s");
  PutPrompts("b.worker", "s");
  const double shared = Probe("docs", probes, kPages);
  const double across = Probe("s", probes, 0);
  std::printf("area under ROC: shared space %.3f, across tenants %.3f (%zu probes each way)\n",
              shared, across, probes);
  const DirectSocket own = ConnectAs("a.worker");
  EXPECT_EQ(Time(own, "s", "a.worker", 0).second, kPages) << "the same tenant still hits";
  if (asked == nullptr) return;
  EXPECT_GE(shared, .9);
  EXPECT_LE(across, .52);
  EXPECT_GE(across, .48);
}

// What it costs a look-up that its caller is identified, by a token among a thousand. The two
// servers are asked in turn.
TEST_F(TimingProbeTest, AnIdentityCostsALookUpMicroseconds) {
  const bool measured = std::getenv("KVSTOW_TIMING_PROBES") != nullptr;
  const int calls = measured ? 10'000 : 100;
  Config open_to_all = config_;
  open_to_all.access = "";
  const auto other = Server::Start(open_to_all, options_);
  ASSERT_TRUE(other.ok()) << other.status();
  for (int i = 0; i < 1000; ++i) {
    const std::string name = absl::StrCat("worker-", i);
    access_["identities"].push_back(
        {{"token_sha256", TokenHash(name)}, {"name", name}, {"tenant", "c"}, {"role", "worker"}});
  }
  StartServer();
  WireClient anybody((*other)->address());
  WireClient& known = As("worker-500");
  std::vector<double> with, without;
  for (int i = 0; i < calls; ++i) {
    for (WireClient* client : {&anybody, &known}) {
      if (i == 0) {
        ASSERT_TRUE(client->OpenSpace("s", "raw").ok());
      }
      v1::LookupRequest request;
      NameSpace("s", request);
      for (uint32_t p = 0; p < 64; ++p) request.add_keys(Key("x", 0, p));
      v1::LookupResponse response;
      const auto context = client->Context();
      const auto begin = std::chrono::steady_clock::now();
      const grpc::Status status = client->kv().Lookup(context.get(), request, &response);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      ASSERT_TRUE(status.ok()) << status.error_message();
      (client == &known ? with : without).push_back(took.count());
    }
  }
  const auto median = [](std::vector<double>& times) {
    std::ranges::nth_element(times, times.begin() + times.size() / 2);
    return times[times.size() / 2];
  };
  const double a = median(without), b = median(with);
  std::printf("p50 of a look-up of 64 keys: %.1f us for anybody, %.1f us with an identity\n", a, b);
  if (measured) {
    EXPECT_LE(b - a, 20);
  }
}

}  // namespace
}  // namespace kvstow::testing
