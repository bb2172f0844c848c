// Servers one after the other on a folder of kept texts: what one has read, the next goes on from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/prompt.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/temp_folder.h"
#include "support/test_api.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRoom = int64_t{1} << 30;

std::string Document() {
  std::string text;
  for (int i = 0; i < 20; ++i) text += kStory + " number " + std::to_string(i) + ". ";
  return text;
}
int64_t CachedOf(const Json& answer) {
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
}
std::string TextOf(const Json& answer) {
  return answer["choices"][0]["text"];
}

class PrefixRestart : public ::testing::Test {
 protected:
  std::shared_ptr<PrefixDir> Open(int64_t limit_bytes = kRoom) {
    auto dir = PrefixDir::Open({.path = folder_.path(), .limit_bytes = limit_bytes, .warn = [this](const auto& text) {
                                  log_ += text + "\n";
                                }});
    EXPECT_TRUE(dir.ok()) << dir.status().message();
    return *std::move(dir);
  }
  std::unique_ptr<TestApi> Start(int64_t kv_limit_bytes = 0, int64_t limit_bytes = kRoom) {
    const int64_t prefix_bytes = kv_limit_bytes > 0 ? kv_limit_bytes : kRoom;
    return std::make_unique<TestApi>(ApiOptions{}, kv_limit_bytes, prefix_bytes, Open(limit_bytes));
  }
  static PrefixStats StatsOf(TestApi& api) { return api.model().prefixes()->stats(); }

  TempFolder folder_;
  std::string log_;
};

TEST_F(PrefixRestart, GoesOnFromWhatWasRead) {
  for (const char* plan : {"full", "two-heads"}) {
    Json body = Greedy(std::string(plan) + Document(), 12);
    body["plan"] = plan;
    body["logprobs"] = 3;
    auto before = Start();
    before->Complete(body);
    const Json hit = before->Complete(body);
    ASSERT_GT(CachedOf(hit), 300);
    before.reset();

    auto after = Start();
    const Json again = after->Complete(body);
    EXPECT_EQ(CachedOf(again), CachedOf(hit));
    // The same bits as from memory.
    EXPECT_EQ(again["choices"], hit["choices"]);
    EXPECT_EQ(StatsOf(*after).num_disk_hits, 1);
    EXPECT_EQ(StatsOf(*after).disk_hit_tokens, CachedOf(hit));
    EXPECT_THAT(after->Ask("GET", "/metrics")->Text(),
                HasSubstr("headwise:prefix_dir_hit_requests_total{model_name=\"headwise-17m\"} 1\n"));
    // From here on it is in memory.
    EXPECT_EQ(after->Complete(body)["choices"], hit["choices"]);
    EXPECT_EQ(StatsOf(*after).num_disk_hits, 1);
    EXPECT_EQ(StatsOf(*after).num_hits, 2);
    Json many = body;
    many["n"] = 2;
    EXPECT_EQ(CachedOf(after->Complete(many)), CachedOf(hit));
  }
  EXPECT_EQ(log_, "");
}

// A look at what there is for a text, as who might wait for another's reading takes one, leaves it there.
TEST_F(PrefixRestart, ALookTakesNothing) {
  const Json body = Greedy("full" + Document(), 4);
  Start()->Complete(body);
  auto api = Start();
  PrefixStore& store = *api->model().prefixes();
  const auto plan = HeadPlan::Dense(api->model().engine().shape());
  const std::vector<int32_t> ids = *EncodePrompt(api->model().engine(), std::string(body["prompt"]));
  store.Fetch(plan, ids);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(store.Peek(plan, ids).kept.size(), 1u);
  EXPECT_EQ(store.Find(plan, ids).kept.size(), 1u);
  EXPECT_TRUE(store.Peek(plan, ids).kept.empty());
}

TEST_F(PrefixRestart, SeveralChoicesGoOnToo) {
  Json body = Greedy(Document(), 8);
  body["n"] = 2;
  const int64_t cached = [&] {
    auto before = Start();
    before->Complete(body);
    return CachedOf(before->Complete(body));
  }();
  EXPECT_GT(cached, 300);
  auto after = Start();
  EXPECT_EQ(CachedOf(after->Complete(body)), cached);
  EXPECT_EQ(StatsOf(*after).num_disk_hits, 1);
}

TEST_F(PrefixRestart, OtherPlansReadAnew) {
  Json body = Greedy(Document(), 4);
  Start()->Complete(body);
  auto after = Start();
  body["plan"] = "two-heads";
  EXPECT_EQ(CachedOf(after->Complete(body)), 0);
  // The same rules by another name.
  HeadPlan full = HeadPlan::Dense(after->model().engine().shape());
  full.method = "another";
  ASSERT_FALSE(after->model().AddPlan("all", std::move(full), "test"));
  body["plan"] = "all";
  EXPECT_GT(CachedOf(after->Complete(body)), 300);
}

TEST_F(PrefixRestart, OtherArithmeticIsNotUsed) {
  const Json body = Greedy(Document(), 4);
  Start()->Complete(body);
  EngineOptions options = ExactOptions(SourcePath("models/headwise-17m"), {"cpu"});
  options.chunk_tokens = 100;
  auto service = Service::Create(MustCreate(options));
  ASSERT_TRUE(service.ok());
  const std::shared_ptr<PrefixDir> dir = Open();
  EXPECT_GT(dir->num_entries(), 0);
  ModelHost host;
  auto model =
      ServedModel::Create(*std::move(service), {.name = "other", .prefix_cache_bytes = kRoom, .prefix_dir = dir});
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->prefixes()->stats().num_disk_entries, 0);
  // Nor are they removed.
  EXPECT_GT(dir->num_entries(), 0);
}

TEST_F(PrefixRestart, WhatIsTornIsReadAnew) {
  const Json body = Greedy(Document(), 8);
  const std::string said = TextOf(Start()->Complete(body));
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
    if (file.path().extension() != ".prefix") continue;
    std::string bytes = *ReadFile(file.path());
    bytes[bytes.size() / 2] ^= 1;  // in its pages, which nobody looks at before they are asked for
    ASSERT_TRUE(WriteFileAtomically(file.path(), bytes).ok());
  }
  auto after = Start();
  EXPECT_GT(StatsOf(*after).num_disk_entries, 0);
  const Json again = after->Complete(body);
  EXPECT_EQ(CachedOf(again), 0);
  EXPECT_EQ(TextOf(again), said);
  EXPECT_THAT(log_, HasSubstr("is not what its hash says"));
}

TEST_F(PrefixRestart, ComesBackUnderALimit) {
  const Json body = Greedy(Document(), 8);
  constexpr int64_t kLimit = 24 << 20;
  const Json first = Start(kLimit)->Complete(body);
  auto after = Start(kLimit);
  const Json again = after->Complete(body);
  EXPECT_GT(CachedOf(again), 300);
  EXPECT_EQ(TextOf(again), TextOf(first));
  after->model().prefixes()->Clear();
  EXPECT_TRUE(WaitUntil([&] {
    after->model().service().Cancel(0);  // a look at how things stand
    const ServiceStats stats = after->model().service().stats();
    return stats.kv_bytes == 0 && stats.kv_reserved_bytes == 0;
  }));
}

TEST_F(PrefixRestart, WhatDoesNotFitIsNotWritten) {
  auto api = Start(0, 1 << 20);  // nothing fits
  const Json body = Greedy(Document(), 8);
  api->Complete(body);
  EXPECT_GT(CachedOf(api->Complete(body)), 300);
  EXPECT_EQ(StatsOf(*api).num_disk_entries, 0);
}

}  // namespace
}  // namespace headwise
