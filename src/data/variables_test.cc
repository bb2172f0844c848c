#include "data/variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "base/sha256.h"
#include "data/filler.h"
#include "support/text.h"

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

std::vector<VariableChain> Draw(const VariableOptions& options, uint64_t seed = 1) {
  Rng rng(seed);
  return DrawVariableChains(rng, options);
}

std::string Filler(int64_t min_chars) {
  Rng rng(9);
  return MakeFiller(rng, min_chars);
}

TEST(MakeVariables, AssignsInOrderAndAsks) {
  const std::vector<VariableChain> chains = {
      {.value = 12345, .names = {"XQZTA", "BRWQP", "LMEOD"}, .depths = {0.1, 0.6, 0.6}},
      {.value = 54321, .names = {"AAAAA", "BBBBB"}, .depths = {0.0, 1.0}}};
  const AskedText text = MakeVariables("One two. Three four. Five.", chains);
  EXPECT_EQ(text.context,
            "VAR AAAAA = 54321. VAR XQZTA = 12345. One two. VAR BRWQP = VAR XQZTA. VAR LMEOD = VAR BRWQP. Three four. "
            "VAR BBBBB = VAR AAAAA. Five.");
  ASSERT_EQ(text.questions.size(), 1U);
  EXPECT_EQ(text.questions[0].text,
            "\n\nFind all variables that are assigned the value 12345 in the text above. Answer: the variables are");
  EXPECT_THAT(text.questions[0].expected, ElementsAre("XQZTA", "BRWQP", "LMEOD"));
  EXPECT_EQ(MakeVariables("", chains).context,
            "VAR AAAAA = 54321. VAR XQZTA = 12345. VAR BRWQP = VAR XQZTA. VAR LMEOD = VAR BRWQP. VAR BBBBB = VAR "
            "AAAAA.");
}

// Reads the text as a program does, from its start to its end.
std::map<std::string, std::string> ValuesByName(const std::string& text) {
  std::map<std::string, std::string> value_of;
  const std::regex assignment("VAR ([A-Z]{5}) = (VAR )?([A-Z]{5}|[0-9]{5})\\. ?");
  for (auto it = std::sregex_iterator(text.begin(), text.end(), assignment); it != std::sregex_iterator(); ++it) {
    const bool is_copy = (*it)[2].matched;
    EXPECT_FALSE(value_of.contains((*it)[1])) << (*it)[0];
    EXPECT_TRUE(!is_copy || value_of.contains((*it)[3])) << (*it)[0];
    value_of[(*it)[1]] = is_copy ? value_of[(*it)[3]] : std::string((*it)[3]);
  }
  return value_of;
}

TEST(MakeVariables, ExpectsWhatRunningTheTextGives) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<VariableChain> chains = Draw({.num_chains = 4, .num_hops = 6}, seed);
    const AskedText text = MakeVariables(Filler(10'000), chains);
    const std::map<std::string, std::string> value_of = ValuesByName(text.context);
    EXPECT_EQ(value_of.size(), 28U);
    std::set<std::string> values;
    std::vector<std::string> names;
    for (const auto& [name, value] : value_of) {
      values.insert(value);
      if (value == std::to_string(chains[0].value)) names.push_back(name);
    }
    EXPECT_EQ(values.size(), 4U);
    EXPECT_THAT(text.questions[0].expected, UnorderedElementsAreArray(names));
    EXPECT_EQ(names.size(), 7U);
    EXPECT_EQ(CountOf(std::to_string(chains[0].value), text.context), 1U);
    EXPECT_EQ(CountOf(std::to_string(chains[0].value), text.questions[0].text), 1U);
    // Every name where it is assigned, and all but the last where the next one is.
    for (size_t i = 0; i < 7; ++i) EXPECT_EQ(CountOf(chains[0].names[i], text.context), i < 6 ? 2U : 1U);
  }
}

TEST(MakeVariables, ScattersTheAssignments) {
  const AskedText text = MakeVariables(Filler(20'000), Draw({.num_chains = 10, .num_hops = 9}));
  const std::vector<size_t> places = PlacesOf(" = ", text.context);
  ASSERT_EQ(places.size(), 100U);
  const size_t size = text.context.size();
  EXPECT_LT(places.front(), size / 10);
  EXPECT_GT(places.back(), size - size / 10);
  EXPECT_LT(places[60], size * 3 / 4);
  EXPECT_GT(places[40], size / 4);
}

TEST(DrawVariableChains, SeedFixesThem) {
  const auto context = [](uint64_t seed) { return MakeVariables("", Draw({.num_chains = 3}, seed)).context; };
  EXPECT_EQ(context(4), context(4));
  EXPECT_NE(context(4), context(5));
  EXPECT_EQ(Sha256Hex(context(4)), "75b0e2c3acbc57366cbdb18949e8720367c0f0208aa2d3387e0302f7f17b7d3f");
}

TEST(ValidateVariableOptions, NamesWhatIsOutOfRange) {
  EXPECT_TRUE(ValidateVariableOptions({}).ok());
  EXPECT_TRUE(ValidateVariableOptions({.num_chains = 1, .num_hops = 0}).ok());
  EXPECT_THAT(ValidateVariableOptions({.num_chains = 0}).message(),
              HasSubstr("number of chains is 0, expected 1 to 1000"));
  EXPECT_THAT(ValidateVariableOptions({.num_hops = -1}).message(),
              HasSubstr("number of hops is -1, expected 0 to 1000"));
  EXPECT_THAT(ValidateVariableOptions({.num_hops = 1001}).message(), HasSubstr("number of hops is 1001"));
}

}  // namespace
}  // namespace headwise
