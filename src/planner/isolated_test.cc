#include "planner/isolated.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace headwise {
namespace {

TEST(RunIsolated, GivesWhatTheWorkReturned) {
  const std::string large(1 << 20, 'x');  // more than a pipe holds
  EXPECT_EQ(*RunIsolated([&] { return large; }), large);
  EXPECT_EQ(*RunIsolated([] { return std::string(); }), "");
}

TEST(RunIsolated, ADeathIsNoneAndLeavesThisProcessAlone) {
  int touched = 0;
  const auto result = RunIsolated([&]() -> std::string {
    touched = 1;
    std::abort();
  });
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->has_value());
  EXPECT_EQ(touched, 0);  // a copy's
  EXPECT_EQ(*RunIsolated([] { return std::string("again"); }), "again");
}

}  // namespace
}  // namespace headwise
