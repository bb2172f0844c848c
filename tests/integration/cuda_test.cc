// What only the backend cuda promises: the other suites run on it as on every backend (tools/cuda_tests.sh).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

TEST(Cuda, SteadyDecodingIsReplayed) {
  if (!IsTestDevice("cuda")) GTEST_SKIP() << "needs a GPU: HEADWISE_TEST_DEVICE=cuda";
  const auto engine = MustCreate({.model = SourcePath("models/headwise-17m")});
  ASSERT_NE(engine, nullptr);
  EXPECT_THAT(engine->backend_description(), testing::Not(testing::HasSubstr("replayed")));
  ASSERT_TRUE(engine->Run(RequestOf(IdsOf(1, 20), 50)).ok());
  // All but the prompt, the first step behind it, and those in which a page begins.
  EXPECT_THAT(engine->backend_description(), testing::ContainsRegex("4[0-9] steps replayed as graphs"));
}

// Who is chosen is not known to the host, and changes nothing that is launched.
TEST(Cuda, SteadyDecodingThroughExpertsIsReplayed) {
  if (!IsTestDevice("cuda")) GTEST_SKIP() << "needs a GPU: HEADWISE_TEST_DEVICE=cuda";
  for (const std::string name : {"qwen3_moe", "gpt_oss", "qwen2_moe"}) {
    const auto engine = MustCreate({.model = SourcePath("tests/golden/tiny/" + name)});
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Run(RequestOf({1, 5, 3, 2, 7}, 50)).ok()) << name;
    EXPECT_THAT(engine->backend_description(), testing::ContainsRegex("4[0-9] steps replayed as graphs")) << name;
  }
}

}  // namespace
}  // namespace headwise
