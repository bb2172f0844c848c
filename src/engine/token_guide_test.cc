#include "engine/token_guide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/fake_constraint.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kVocabSize = 70;  // no multiple of a word

std::vector<int32_t> LeftOf(const std::vector<float>& logits) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!std::isinf(logits[id])) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

TokenGuide GuideOf(FakeConstraint::Rule rule, std::vector<int32_t> end_ids) {
  return {std::make_shared<FakeConstraint>(kVocabSize, std::move(rule)), std::move(end_ids)};
}

TEST(TokenGuide, LeavesWhatIsAllowed) {
  TokenGuide guide = GuideOf(
      [](size_t n) {
        return n == 0 ? FakeStep{{3, 5, 31, 32, 69}, false} : FakeStep{{5, 64}, true};
      },
      {5, 68, 1000});
  std::vector<float> logits(kVocabSize, 1.5f);
  EXPECT_TRUE(*guide.Limit(logits));
  EXPECT_THAT(LeftOf(logits), ElementsAre(3, 31, 32, 69)) << "5 ends texts, and this one may not end";
  EXPECT_EQ(logits[69], 1.5f);
  EXPECT_TRUE(guide.Take(69).ok());
  logits.assign(kVocabSize, 1);
  EXPECT_TRUE(*guide.Limit(logits));
  EXPECT_THAT(LeftOf(logits), ElementsAre(5, 64, 68));
  EXPECT_TRUE(guide.Take(68).ok());
}

TEST(TokenGuide, EndsWhereNothingElseMayCome) {
  std::vector<float> logits(kVocabSize, 1);
  TokenGuide over = GuideOf([](size_t) { return FakeStep{{}, true}; }, {});
  EXPECT_FALSE(*over.Limit(logits));
  TokenGuide dead = GuideOf([](size_t) { return FakeStep{{}, false}; }, {2});
  EXPECT_THAT(dead.Limit(logits).status().message(), HasSubstr("no token of the vocabulary"));
  // An id that is none of the vocabulary is nothing that may come.
  TokenGuide beyond = GuideOf([](size_t) { return FakeStep{{75}, false}; }, {});
  EXPECT_FALSE(beyond.Limit(logits).ok());
}

TEST(TokenGuide, SaysThatABiasForbidsEverything) {
  TokenGuide guide = GuideOf([](size_t) { return FakeStep{{3}, false}; }, {});
  std::vector<float> logits(kVocabSize, 1);
  EXPECT_TRUE(*guide.Limit(logits));
  EXPECT_THAT(guide.Take(0).message(), HasSubstr("logit_bias forbids"));
}

}  // namespace
}  // namespace headwise
