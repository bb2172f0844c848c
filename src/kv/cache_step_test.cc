// What a step hands a device beside its tokens, and what a step that cannot be had leaves behind.
#include "kv/cache_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "backend/all_backends.h"
#include "support/far_backend.h"

namespace headwise {
namespace {

constexpr int64_t kHeadDim = 16;
constexpr int64_t kPageTokens = 16;
constexpr int64_t kPrompt = 100;

// Every kind of rule.
std::map<std::string, ResolvedRule> RulesByName() {
  const SequenceLimits limits{.prompt_tokens = kPrompt, .max_tokens = 20000};
  const auto resolve = [&](HeadRule rule) { return ResolveRule(rule, limits); };
  HeadRule cached = HeadRule::Stream(20, 50);
  cached.positions = Positions::kCache;
  HeadRule compensated = HeadRule::Stream(4, 60);
  compensated.compensate = true;
  HeadRule cut = compensated;
  cut.start = RuleStart::kEndOfPrompt;
  const HeadRule moa{.kind = HeadRule::Kind::kElasticMoa, .sink = 64, .alpha = 10, .beta = 0.01};
  const HeadRule razor{.kind = HeadRule::Kind::kElasticRazor, .sink = 4, .min_recent = 30, .divisor = 5};
  return {{"full", resolve(HeadRule::Full())},
          {"window", resolve(HeadRule::Stream(0, 33))},
          {"stream", resolve(HeadRule::Stream(40, 64))},
          {"positions in the cache", resolve(cached)},
          {"compensation", resolve(compensated)},
          {"from the end of the prompt", resolve(cut)},
          {"elastic, moa", resolve(moa)},
          {"elastic, razor", resolve(razor)}};
}

// A cache of one layer with a head of every given rule, read without attention.
class Reader {
 public:
  Reader(Backend& backend, const KvFormats& formats, std::vector<ResolvedRule> rules, int64_t limit_bytes = 0)
      : backend_(backend),
        pools_(backend,
               {.head_dim = kHeadDim, .page_tokens = kPageTokens, .formats = formats, .limit_bytes = limit_bytes}),
        cache_(std::make_unique<KvCache>(pools_.pools(), static_cast<int64_t>(rules.size()), rules)),
        step_(backend, pools_.pools()),
        rows_(DeviceBuffer::Make(backend.device(), rules.size() * kHeadDim * 4 * 256).value()) {}

  KvCache& cache() { return *cache_; }
  KvPoolSet& pools() { return pools_; }

  // Places in the tables that differ from the step before.
  int64_t Read(KvCache& cache, int64_t num_new) {
    const Status status = cache.PlanStep(num_new);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) return -1;
    step_.Add(cache);
    step_.Begin();
    const auto num_changed = static_cast<int64_t>(
        step_.step().changed_pages.size() + step_.step().changed_heads.size() + step_.step().changed_selections.size());
    CacheLayerArgs args;
    args.k = args.v = ConstTensorView(rows_.data(), DType::kF32, {num_new, cache.num_kv_heads() * kHeadDim});
    step_.RunLayer(0, args);
    step_.Finish();
    return num_changed;
  }

 private:
  Backend& backend_;
  KvPoolSet pools_;
  std::unique_ptr<KvCache> cache_;
  CacheStep step_;
  DeviceBuffer rows_;
};

// A page begins with token n.
bool BeginsPage(int64_t n) {
  return n % kPageTokens == 0;
}

TEST(CacheStep, DecodingHandsOverNothingButTokens) {
  const auto backend = MakeBackend({.name = "ref"}).value();
  for (const auto& [name, rule] : RulesByName()) {
    Reader reader(*backend, {KvFormat::kF32, KvFormat::kF32}, {rule});
    reader.Read(reader.cache(), kPrompt);
    // The first step behind the prompt reads by the tables that the prompt left.
    reader.Read(reader.cache(), 1);
    const int64_t ring = RingPages(rule.recent, rule.compensate, kPageTokens);
    const int64_t sink_pages = (rule.sink + kPageTokens - 1) / kPageTokens;
    int64_t num_begun = 0;
    int64_t num_handed = 0;
    for (int64_t i = 0; i < 10000; ++i) {
      const int64_t n = reader.cache().num_tokens();
      const bool grows = BeginsPage(n) && n / kPageTokens < (ring == kNoLimit ? kNoLimit : sink_pages + ring);
      const int64_t num_changed = reader.Read(reader.cache(), 1);
      ASSERT_EQ(num_changed > 0, grows) << name << " at " << n << ": " << num_changed;
      num_begun += grows ? 1 : 0;
      num_handed += num_changed;
    }
    // A table that is full moves to one of twice its size: at most two more entries for each page, and the head's.
    EXPECT_LE(num_handed, 4 * num_begun + 16) << name;
  }
}

// Each step of a token drops one: a budget of whole pages has one page more, so that none comes and goes.
TEST(CacheStep, AHeadThatSelectsByScoreHandsOverNothingOnceItIsFull) {
  const auto backend = MakeBackend({.name = "ref"}).value();
  for (const int64_t budget : {4 * kPageTokens - 1, 4 * kPageTokens, 4 * kPageTokens + 1}) {
    HeadRule rule = HeadRule::Stream(0, budget);
    rule.select.kind = TokenSelector::Kind::kH2o;
    Reader reader(*backend, {KvFormat::kF32, KvFormat::kF32}, {ResolveRule(rule, {})});
    reader.Read(reader.cache(), kPrompt);
    reader.Read(reader.cache(), 1);
    for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(reader.Read(reader.cache(), 1), 0) << budget << " at " << i;
    EXPECT_EQ(reader.cache().NumPages(0, 0).total(), budget / kPageTokens + 1);
  }
}

// Where pages age an entry changes when one is begun, and the one before the newest when a page is complete.
TEST(CacheStep, AgeingHandsOverTwoEntriesForAPage) {
  const auto backend = MakeBackend({.name = "ref"}).value();
  for (const auto& [name, rule] : RulesByName()) {
    Reader reader(*backend, {KvFormat::kQ4, KvFormat::kQ4}, {rule});
    reader.Read(reader.cache(), kPrompt);
    reader.Read(reader.cache(), 1);
    int64_t num_handed = 0;
    for (int64_t i = 0; i < 10000; ++i) {
      const int64_t n = reader.cache().num_tokens();
      const int64_t num_changed = reader.Read(reader.cache(), 1);
      ASSERT_TRUE(num_changed == 0 || BeginsPage(n)) << name << " at " << n << ": " << num_changed;
      num_handed += num_changed;
    }
    EXPECT_LE(num_handed, 5 * (10000 / kPageTokens) + 16) << name;
  }
}

TEST(CacheStep, AForkHandsOverThePageThatItCopies) {
  const auto backend = MakeBackend({.name = "ref"}).value();
  std::vector<ResolvedRule> rules;
  for (const auto& [name, rule] : RulesByName()) rules.push_back(rule);
  Reader reader(*backend, {KvFormat::kF32, KvFormat::kF32}, rules);
  reader.Read(reader.cache(), kPrompt);
  reader.Read(reader.cache(), 2);
  const auto fork = reader.cache().Fork();
  const auto num_heads = static_cast<int64_t>(rules.size());
  const auto num_states = std::count_if(rules.begin(), rules.end(), [](const auto& rule) { return rule.compensate; });
  // The fork's own tables are new to a device; of the original's only what is copied.
  EXPECT_GE(reader.Read(*fork, 1), num_heads + num_states);
  EXPECT_EQ(reader.Read(reader.cache(), 1), 0) << "the fork has copied: nothing is shared that is written to";
  EXPECT_EQ(reader.Read(*fork, 1), 0);
  const auto second = reader.cache().Fork();
  reader.Read(*fork, 1);
  EXPECT_GE(reader.Read(reader.cache(), 1), num_heads + num_states);
}

// A step that would exceed the limit changes nothing, whatever rules and formats: the cache goes on once there is room.
TEST(CacheStep, ARefusedStepLeavesEverythingAsItWas) {
  const auto backend = MakeBackend({.name = "ref"}).value();
  std::vector<ResolvedRule> rules;
  for (const auto& [name, rule] : RulesByName()) rules.push_back(rule);
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kQ4}) {
    Reader reader(*backend, {format, format}, rules);
    Reader unlimited(*backend, {format, format}, rules);
    int64_t num_refused = 0;
    for (const int64_t num_new : {60, 40, 1, 1, 30, 200, 1, 5, 16, 1}) {
      PoolUsage& usage = reader.pools().usage();
      const PoolUsage before = usage;
      const KvCacheBytes bytes = reader.cache().Bytes();
      const uint32_t first_head = reader.cache().Rows(0).first_head;
      usage.limit_bytes = std::max<int64_t>(1, usage.bytes);
      const Status status = reader.cache().PlanStep(num_new);
      if (status.ok()) {
        reader.cache().FinishStep();
      } else {
        ++num_refused;
        EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
        EXPECT_EQ(usage.bytes, before.bytes);
        EXPECT_EQ(usage.peak_bytes, before.peak_bytes);
        EXPECT_EQ(reader.cache().Bytes().total(), bytes.total());
        EXPECT_EQ(reader.cache().planned_tokens(), 0);
        EXPECT_EQ(reader.cache().Rows(0).first_head, first_head) << "it is still read by its own tables";
        usage.limit_bytes = 0;
        reader.Read(reader.cache(), num_new);
      }
      usage.limit_bytes = 0;
      unlimited.Read(unlimited.cache(), num_new);
      ASSERT_EQ(reader.cache().num_tokens(), unlimited.cache().num_tokens());
      ASSERT_EQ(reader.cache().Bytes().total(), unlimited.cache().Bytes().total());
      ASSERT_LE(reader.pools().usage().bytes, reader.pools().usage().peak_bytes);
    }
    EXPECT_GE(num_refused, 4);
  }
}

// The limit is one of the pools: it holds for every sequence over them, forks included, and exactly.
TEST(CacheStep, NoPageIsHandedOutBeyondTheLimit) {
  const auto backend = MakeBackend({.name = "ref"}).value();
  const int64_t page_bytes = static_cast<int64_t>(
      backend->PageBytes({.head_dim = kHeadDim, .page_tokens = kPageTokens, .format = KvFormat::kF32}));
  Reader reader(*backend, {KvFormat::kF32, KvFormat::kF32}, {ResolvedRule{}, ResolvedRule{}}, 10 * page_bytes);
  reader.Read(reader.cache(), 3 * kPageTokens);
  const auto fork = reader.cache().Fork();
  EXPECT_EQ(reader.pools().usage().bytes, 6 * page_bytes);
  reader.Read(*fork, 2 * kPageTokens);
  EXPECT_EQ(reader.pools().usage().bytes, 10 * page_bytes);
  const Status status = reader.cache().PlanStep(1);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(status.message().find("its limit is"), std::string::npos) << status.message();
}

// A device whose memory ends: not an abort, and the pools hold nothing of it afterwards.
class SmallDevice final : public Device {
 public:
  explicit SmallDevice(int64_t bytes) : left_(bytes) {}
  Result<std::byte*> Allocate(size_t bytes) override {
    if (static_cast<int64_t>(bytes) > left_) return Status::OutOfMemory("the device is full");
    left_ -= static_cast<int64_t>(bytes);
    return host_.Allocate(bytes);
  }
  void Free(std::byte* memory, size_t bytes) override {
    left_ += static_cast<int64_t>(bytes);
    host_.Free(memory, bytes);
  }
  void CopyFromHost(void* to, const void* host, size_t bytes) override { host_.CopyFromHost(to, host, bytes); }
  void CopyToHost(void* host, const void* from, size_t bytes) override { host_.CopyToHost(host, from, bytes); }
  void Copy(void* to, const void* from, size_t bytes) override { host_.Copy(to, from, bytes); }
  Status Wait() override { return Status::Ok(); }

 private:
  HostDevice host_;
  int64_t left_;
};

TEST(PagePool, MemoryThatRunsOutIsAnAnswer) {
  SmallDevice device(5 << 20);
  PagePool pool(device, {.layout = {.head_dim = 64}, .page_bytes = 1 << 20});
  ASSERT_TRUE(pool.MakeRoom(PageUse::kGrowing, 3).ok());
  std::vector<uint32_t> pages;
  for (int i = 0; i < 3; ++i) pages.push_back(pool.Allocate(PageUse::kGrowing, HeadClass::kFull));
  EXPECT_EQ(pool.MakeRoom(PageUse::kGrowing, 2).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(pool.extent_bytes(), 4 << 20) << "what was taken in vain is given back";
  ASSERT_TRUE(pool.MakeRoom(PageUse::kGrowing, 1).ok());
  pages.push_back(pool.Allocate(PageUse::kGrowing, HeadClass::kFull));
  for (const uint32_t page : pages) pool.Release(page);
  EXPECT_EQ(pool.pages_in_use(), 0);
}

}  // namespace
}  // namespace headwise
