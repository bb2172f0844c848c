// Any bytes as the file of a kept text, as they are and with hashes that agree with them: an error, or a text that is
// refused by the rules it was read under or makes a cache that says of itself what the file said. The input that gets
// hashes is a byte that chooses the cache's format, the bytes of the head in two bytes, the head, and what is behind
// it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/all_backends.h"
#include "base/byte_stream.h"
#include "base/check.h"
#include "base/sha256.h"
#include "kv/kv_cache.h"
#include "kv/kv_snapshot_bytes.h"
#include "server/prefix_file.h"

namespace headwise {
namespace {

constexpr int64_t kHeads = 4;

// A cache's pages, and the plan that texts are asked for under.
struct Memory {
  Memory(const char* formats, int64_t head_dim, int64_t page_tokens)
      : backend(MakeBackend({.name = "ref"}).value()),
        set(*backend, {.head_dim = head_dim,
                       .page_tokens = page_tokens,
                       .formats = KvFormatsByName(formats).value(),
                       .limit_bytes = 1 << 20}) {
    plan.shape = {.architecture = "", .num_layers = 1, .num_q_heads = 4, .num_kv_heads = kHeads, .head_dim = head_dim};
    HeadRule compensated = HeadRule::Stream(3, 9);
    compensated.compensate = true;
    HeadRule elastic;
    elastic.kind = HeadRule::Kind::kElasticMoa;
    elastic.sink = 2;
    elastic.alpha = 4;
    elastic.beta = 0.25;
    HeadRule cut;
    cut.kind = HeadRule::Kind::kElasticRazor;
    cut.min_recent = 5;
    cut.divisor = 3;
    cut.compensate = true;
    cut.start = RuleStart::kEndOfPrompt;
    plan.rules = {HeadRule::Full(), compensated, elastic, cut};
  }

  std::unique_ptr<Backend> backend;
  KvPoolSet set;
  HeadPlan plan;
};

std::string BytesOf(const KvSnapshot& snapshot) {
  ByteWriter to;
  PutSnapshot(to, snapshot);
  return to.bytes() +
         std::string(reinterpret_cast<const char*>(snapshot.pages.get()), static_cast<size_t>(snapshot.bytes));
}

void Restore(const Memory& memory, const SavedText& text) {
  const KvPools& pools = memory.set.pools();
  const std::vector<ResolvedRule> rules = ResolveRules(memory.plan, text.limits, {});
  if (!CheckSnapshot(pools, kHeads, rules, text.snapshot).ok()) return;
  auto cache = KvCache::Restore(pools, text.snapshot);
  if (!cache.ok()) {
    HW_CHECK(cache.status().code() == StatusCode::kOutOfMemory, "{}", cache.status().message());
    return;
  }
  const auto again = (*cache)->Save();
  HW_CHECK(again.ok(), "{}", again.status().message());
  HW_CHECK(BytesOf(**again) == BytesOf(text.snapshot), "another text than the file's");
  if ((*cache)->PlanStep(1).ok()) (*cache)->AbandonStep();
}

void Check(const Memory& memory, std::string_view file, bool is_whole) {
  const auto text = ParsePrefixFile(file, "fuzz");
  if (text.ok()) return Restore(memory, **text);
  HW_CHECK(text.status().message().starts_with("fuzz: "), "{}", text.status().message());
  HW_CHECK(!is_whole || text.status().code() == StatusCode::kInvalidInput, "{}", text.status().message());
}

std::string HashOf(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Hex();
}

std::string WithHashes(std::string_view head, std::string_view payload) {
  ByteWriter front;
  front.Put(uint32_t{1});  // the version
  front.Put(static_cast<uint64_t>(head.size()));
  std::string file = "headwise-prefix\n" + front.bytes() + std::string(head);
  file += HashOf(file);
  file += payload;
  file += HashOf(file);
  return file;
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using headwise::Memory;
  static const Memory memories[] = {{"f32", 4, 16}, {"q4", 16, 16}, {"q8,q4", 16, 16}};
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  headwise::Check(memories[0], input, /*is_whole=*/false);
  if (size < 3) return 0;
  const Memory& memory = memories[data[0] % std::size(memories)];
  const std::string_view rest = input.substr(3);
  const size_t head_bytes = std::min(rest.size(), size_t{data[1]} + (size_t{data[2]} << 8));
  const std::string_view head = rest.substr(0, head_bytes);
  headwise::Check(memory, headwise::WithHashes(head, rest.substr(head_bytes)), /*is_whole=*/true);
  return 0;
}
