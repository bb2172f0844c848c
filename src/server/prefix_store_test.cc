// The store alone, on ids that no model has read.
#include "server/prefix_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace headwise {
namespace {

using Ids = std::vector<int32_t>;

std::shared_ptr<const HeadPlan> SomePlan() {
  return std::make_shared<HeadPlan>();
}

// Stands for a sequence: nobody looks into it, but it can be seen to go.
std::shared_ptr<const Sequence> Token(std::weak_ptr<int>* watch = nullptr) {
  auto alive = std::make_shared<int>();
  if (watch != nullptr) *watch = alive;
  return {std::move(alive), nullptr};
}

int64_t LongestOf(PrefixStore& store, const HeadPlan& plan, const Ids& ids) {
  const auto found = store.Find(plan, ids);
  return found.kept.empty() ? 0 : found.kept.front().num_tokens;
}

TEST(PrefixStore, FindsTheLongestBeginning) {
  PrefixStore store(1000);
  const auto plan = SomePlan();
  store.Keep(plan, Ids{1, 2}, Token(), 10);
  store.Keep(plan, Ids{1, 2, 3, 4}, Token(), 10);
  store.Keep(plan, Ids{1, 2, 3, 5, 6}, Token(), 10);
  const auto found = store.Find(*plan, Ids{1, 2, 3, 4, 9});
  ASSERT_EQ(found.kept.size(), 2u);
  EXPECT_EQ(found.kept[0].num_tokens, 4);
  EXPECT_EQ(found.kept[1].num_tokens, 2);
  EXPECT_EQ(found.common_tokens, 4);
  // Not the whole prompt: its last token has to be read.
  EXPECT_EQ(LongestOf(store, *plan, {1, 2, 3, 4}), 2);
  // In the middle of what two have in common, and of what one has alone.
  EXPECT_EQ(store.Find(*plan, Ids{1, 2, 3, 7}).common_tokens, 3);
  EXPECT_EQ(store.Find(*plan, Ids{1, 2, 3, 5, 7}).common_tokens, 4);
  EXPECT_EQ(store.Find(*plan, Ids{2}).common_tokens, 0);
  EXPECT_EQ(LongestOf(store, *SomePlan(), {1, 2, 3}), 0) << "another plan's";
}

TEST(PrefixStore, CountsWhatIsFound) {
  PrefixStore store(1000);
  const auto plan = SomePlan();
  store.Keep(plan, Ids{1, 2}, Token(), 10);
  store.NoteHit(store.Find(*plan, Ids{1, 2, 3}).kept.front(), 3);
  store.NoteMiss(PrefixMiss::kRules, 5);
  const PrefixStats stats = store.stats();
  EXPECT_EQ(stats.query_tokens, 8);
  EXPECT_EQ(stats.hit_tokens, 2);
  EXPECT_EQ(stats.num_hits, 1);
  EXPECT_EQ(stats.num_misses[static_cast<size_t>(PrefixMiss::kRules)], 1);
  EXPECT_EQ(stats.num_entries, 1);
  EXPECT_EQ(stats.bytes, 10);
  EXPECT_EQ(stats.budget_bytes, 1000);
}

TEST(PrefixStore, LetsGoOfWhatWasNotUsedForLongest) {
  PrefixStore store(30);
  const auto plan = SomePlan();
  std::weak_ptr<int> first, second;
  store.Keep(plan, Ids{1, 1}, Token(&first), 10);
  store.Keep(plan, Ids{2, 2}, Token(&second), 10);
  store.Keep(plan, Ids{3, 3}, Token(), 10);
  store.NoteHit(store.Find(*plan, Ids{1, 1, 1}).kept.front(), 3);
  store.Keep(plan, Ids{4, 4}, Token(), 10);
  EXPECT_FALSE(first.expired());
  EXPECT_TRUE(second.expired());
  EXPECT_EQ(store.stats().bytes, 30);
  EXPECT_EQ(store.stats().num_evicted, 1);
  EXPECT_FALSE(store.Wants(*plan, Ids{5}, 31)) << "more than all others";
  store.Keep(plan, Ids{5}, Token(), 31);
  EXPECT_EQ(store.stats().num_entries, 3);
}

TEST(PrefixStore, LetsGoOfWhatSavesLittleForItsBytes) {
  PrefixStore store(100);
  const auto plan = SomePlan();
  store.Keep(plan, Ids(50, 1), Token(), 10);
  store.Keep(plan, Ids(50, 2), Token(), 80);
  store.Keep(plan, Ids(50, 3), Token(), 20);
  EXPECT_EQ(LongestOf(store, *plan, Ids(60, 1)), 50);
  EXPECT_EQ(LongestOf(store, *plan, Ids(60, 2)), 0);
  // What is never asked for goes in the end, however much it would save.
  for (int32_t id = 4; id < 40; ++id) store.Keep(plan, Ids(20, id), Token(), 20);
  EXPECT_EQ(LongestOf(store, *plan, Ids(60, 1)), 0);
}

TEST(PrefixStore, WantsATextOnce) {
  PrefixStore store(100);
  const auto plan = SomePlan();
  EXPECT_TRUE(store.Wants(*plan, Ids{1, 2}, 10));
  std::weak_ptr<int> before;
  store.Keep(plan, Ids{1, 2}, Token(&before), 10);
  EXPECT_FALSE(store.Wants(*plan, Ids{1, 2}, 10));
  EXPECT_TRUE(store.Wants(*plan, Ids{1}, 10));
  EXPECT_TRUE(store.Wants(*plan, Ids{1, 2, 3}, 10));
  store.Keep(plan, Ids{1, 2}, Token(), 7);
  EXPECT_TRUE(before.expired());
  EXPECT_EQ(store.stats().bytes, 7);
  EXPECT_EQ(store.stats().num_entries, 1);
}

TEST(PrefixStore, GivesWayOrKeepsAll) {
  PrefixStore store(100);
  const auto plan = SomePlan();
  for (int32_t id = 0; id < 5; ++id) store.Keep(plan, Ids{id}, Token(), 10);
  EXPECT_FALSE(store.Reclaim(51));
  EXPECT_EQ(store.stats().num_entries, 5);
  EXPECT_TRUE(store.Reclaim(11));
  EXPECT_EQ(store.stats().num_entries, 3);
  EXPECT_TRUE(store.Reclaim(30));
  EXPECT_EQ(store.stats().bytes, 0);
}

// A plan that was removed stays as long as a text is kept under it: its address is the key.
TEST(PrefixStore, HoldsItsPlans) {
  PrefixStore store(100);
  auto plan = SomePlan();
  const std::weak_ptr<const HeadPlan> watch = plan;
  store.Keep(plan, Ids{1}, Token(), 10);
  const HeadPlan& removed = *plan;
  plan.reset();
  EXPECT_FALSE(watch.expired());
  const auto other = SomePlan();
  for (int32_t id = 1; id < 5; ++id) store.Keep(other, Ids{id}, Token(), 10);
  store.Forget(removed);
  EXPECT_EQ(store.stats().num_entries, 4);
  EXPECT_TRUE(watch.expired());
}

// Against a list that is looked through from end to end.
TEST(PrefixStore, AgreesWithAList) {
  std::mt19937 rng(7);
  const auto plan = SomePlan();
  PrefixStore store(400);
  std::vector<Ids> kept;
  for (int round = 0; round < 5000; ++round) {
    Ids ids(1 + rng() % 12);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 3);
    const auto found = store.Find(*plan, ids);
    size_t longest = 0;
    size_t common = 0;
    for (const Ids& each : kept) {
      const auto same = static_cast<size_t>(std::ranges::mismatch(each, ids).in1 - each.begin());
      common = std::max(common, same);
      if (same == each.size() && same < ids.size()) longest = std::max(longest, same);
    }
    ASSERT_EQ(found.common_tokens, static_cast<int64_t>(common));
    ASSERT_EQ(found.kept.empty() ? 0 : found.kept.front().num_tokens, static_cast<int64_t>(longest));
    if (rng() % 50 == 0) {
      store.Clear();
      kept.clear();
    }
    // All of them fit, so that the list knows what is there.
    if (kept.size() == 40) continue;
    ASSERT_EQ(store.Wants(*plan, ids, 10), std::ranges::find(kept, ids) == kept.end());
    store.Keep(plan, ids, Token(), 10);
    if (std::ranges::find(kept, ids) == kept.end()) kept.push_back(ids);
    ASSERT_EQ(store.stats().num_entries, static_cast<int64_t>(kept.size()));
  }
}

// What goes takes no more of the tree with it than is its own.
TEST(PrefixStore, AgreesWithAListAsEntriesGo) {
  std::mt19937 rng(11);
  const auto plan = SomePlan();
  PrefixStore store(10000);
  std::vector<Ids> kept;
  for (int round = 0; round < 5000; ++round) {
    Ids ids(1 + rng() % 10);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 2);
    if (std::ranges::find(kept, ids) == kept.end()) {
      // Of equal worth: the oldest goes first.
      store.Keep(plan, ids, Token(), 10 * static_cast<int64_t>(ids.size()));
      kept.push_back(ids);
    }
    if (rng() % 2 == 0 && !kept.empty()) {
      ASSERT_TRUE(store.Reclaim(1));
      kept.erase(kept.begin());
    }
    int64_t bytes = 0;
    for (const Ids& each : kept) bytes += 10 * static_cast<int64_t>(each.size());
    ASSERT_EQ(store.stats().bytes, bytes);
    for (const Ids& each : kept) {
      Ids longer = each;
      longer.push_back(9);
      ASSERT_EQ(LongestOf(store, *plan, longer), static_cast<int64_t>(each.size()));
    }
    if (kept.size() > 15) {
      store.Clear();
      kept.clear();
    }
  }
}

}  // namespace
}  // namespace headwise
