// A worker of twenty lines: it puts a page and gets it back, with the installed client.
#include <client/client.h>
#include <client/key_chain.h>

#include <cstdio>

int main(int, char** argv) {
  kvstow::KvSpec spec{
      .model = "worker", .revision = "1", .layers = 2, .kv_heads = 2, .page_tokens = 16};
  spec.head_dim_k = spec.head_dim_v = 64;
  const auto client = kvstow::Client::Connect({.address = argv[1]});
  const auto space = client->OpenSpace({.name = "worker", .spec = spec, .recipe = "raw"});
  if (!space.ok()) return std::printf("%s\n", space.status().ToString().c_str()), 1;
  const std::vector<int32_t> tokens(16, 7);
  const std::vector<std::string> keys = kvstow::PageKeys({}, tokens, spec.page_tokens);
  const std::vector<uint8_t> page(kvstow::PageBytes(spec, 16), 0x3C);
  std::vector<uint8_t> back(page.size());
  const auto put = client->Put("worker", {{.key = keys[0], .raw = page, .tokens = 16}}).get();
  const auto got = client->Get("worker", 0, {{.key = keys[0], .out = back}}).get();
  std::printf("%s, %s\n", put[0].message.c_str(), got[0].message.c_str());
  return put[0].outcome == kvstow::PageOutcome::kStored && back == page ? 0 : 1;
}
