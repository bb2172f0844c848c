#include "base/named_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const NamedOptions kOptions({{"list", "a,,b"}, {"ints", "1,2,3"}, {"falling", "1,3,3"}, {"word", "x"}});

TEST(NamedOptions, Lists) {
  EXPECT_THAT(kOptions.StringsOr("list", ""), ElementsAre("a", "", "b"));
  EXPECT_THAT(kOptions.StringsOr("none", "p,q"), ElementsAre("p", "q"));
  EXPECT_THAT(*kOptions.IntsOr("ints", {}, 1, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(*kOptions.IntsOr("none", {7}, 1, 3), ElementsAre(7));
  EXPECT_THAT(kOptions.IntsOr("ints", {}, 1, 2).status().message(), HasSubstr("--ints: found \"3\""));
  EXPECT_THAT(kOptions.IntsOr("list", {}, 1, 2).status().message(), HasSubstr("--list: found \"a\""));
  EXPECT_THAT(*kOptions.RisingIntsOr("ints", {}, 1, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(kOptions.RisingIntsOr("falling", {}, 1, 3).status().message(), HasSubstr("found 3 after 3"));
}

TEST(NamedOptions, ChoicesAndUnknownOptions) {
  const auto choices = std::to_array<std::string_view>({"y", "x"});
  EXPECT_EQ(*kOptions.ChoiceOr("word", choices), "x");
  EXPECT_EQ(*kOptions.ChoiceOr("none", choices), "y");
  EXPECT_THAT(kOptions.ChoiceOr("ints", choices).status().message(), HasSubstr("expected one of: y, x"));
  EXPECT_THAT(kOptions.CheckKnown("plan duo", choices).message(), HasSubstr("--falling: plan duo"));
}

TEST(NamedOptions, SurviveAsJson) {
  const auto again = NamedOptions::FromJson(kOptions.ToJson(), "here");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->ToJson(), kOptions.ToJson());
  EXPECT_THAT(NamedOptions::FromJson("{\"a\": 1}", "here").status().message(), HasSubstr("here: \"a\""));
}

}  // namespace
}  // namespace headwise
