#include "data/needles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/sha256.h"
#include "data/filler.h"
#include "data/lines.h"
#include "support/text.h"

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Needles Draw(const NeedleOptions& options, uint64_t seed = 1) {
  Rng rng(seed);
  return DrawNeedles(rng, options);
}

std::string Filler(int64_t min_chars) {
  Rng rng(9);
  return MakeFiller(rng, min_chars);
}

std::string Told(const std::string& name, const std::string& value) {
  return "One of the special magic numbers for " + name + " is: " + value + ".";
}

Needles OneNeedle(double depth) {
  return {.keys = {{.name = "quiet-river", .values = {{.number = 1234567, .depth = depth}}}},
          .num_questions = 1,
          .distractors = {{.name = "icy-barn", .values = {{.number = 7654321, .depth = 0.0}}},
                          {.name = "bold-gate", .values = {{.number = 1111111, .depth = 0.0}}}}};
}

TEST(MakeNeedles, TellsAtTheDepthAndAsksAtTheEnd) {
  const std::string told = Told("quiet-river", "1234567");
  const std::string filler = "One two. Three four. Five.";
  const AskedText text = MakeNeedles(filler, OneNeedle(0.6));
  EXPECT_EQ(text.context, "One two. " + told + " Three four. Five.");
  ASSERT_EQ(text.questions.size(), 1U);
  EXPECT_EQ(text.questions[0].text,
            "\n\nWhat is the special magic number for quiet-river mentioned in the text? The special magic number for "
            "quiet-river mentioned in the text is");
  EXPECT_THAT(text.questions[0].expected, ElementsAre("1234567"));
  EXPECT_EQ(MakeNeedles(filler, OneNeedle(0.0)).context, told + " " + filler);
  EXPECT_EQ(MakeNeedles(filler, OneNeedle(1.0)).context, "One two. Three four. " + told + " Five.");
  EXPECT_EQ(MakeNeedles("One two.\n\n", OneNeedle(1.0)).context, "One two.\n\n" + told);
  EXPECT_EQ(MakeNeedles("", OneNeedle(0.5)).context, told);
}

TEST(MakeNeedlesOnly, HidesAmongTheFirstDistractors) {
  const std::string told = Told("quiet-river", "1234567");
  const std::string barn = Told("icy-barn", "7654321");
  const std::string gate = Told("bold-gate", "1111111");
  EXPECT_EQ(MakeNeedlesOnly(OneNeedle(0.0), 2).context, told + " " + barn + " " + gate);
  EXPECT_EQ(MakeNeedlesOnly(OneNeedle(0.6), 2).context, barn + " " + told + " " + gate);
  EXPECT_EQ(MakeNeedlesOnly(OneNeedle(1.0), 2).context, barn + " " + gate + " " + told);
  EXPECT_EQ(MakeNeedlesOnly(OneNeedle(1.0), 1).context, barn + " " + told);
  EXPECT_EQ(MakeNeedlesOnly(OneNeedle(1.0), 0).context, told);
}

// Every needle of `keys` stands in the context once, and so does its number.
void ExpectToldOnce(const std::vector<NeedleKey>& keys, const std::string& context) {
  for (const NeedleKey& key : keys) {
    for (const HiddenNumber& value : key.values) {
      const std::string number = std::to_string(value.number);
      EXPECT_EQ(number.size(), 7U);
      EXPECT_EQ(CountOf(Told(key.name, number), context), 1U);
      EXPECT_EQ(CountOf(number, context), 1U);
    }
    EXPECT_EQ(CountOf(" " + key.name + " ", context), key.values.size());
  }
}

TEST(MakeNeedles, AsksForAllValuesOfEveryAskedKey) {
  const Needles needles = Draw({.num_keys = 8, .values_per_key = 4, .num_questions = 3});
  const AskedText text = MakeNeedles(Filler(20'000), needles);
  ASSERT_EQ(needles.keys.size(), 8U);
  ExpectToldOnce(needles.keys, text.context);
  ASSERT_EQ(text.questions.size(), 3U);
  std::set<std::string> names, expected;
  for (const NeedleKey& key : needles.keys) names.insert(key.name);
  for (size_t i = 0; i < 3; ++i) {
    const std::string& name = needles.keys[i].name;
    EXPECT_EQ(text.questions[i].text, "\n\nWhat are all the special magic numbers for " + name +
                                          " mentioned in the text? The special magic numbers for " + name +
                                          " mentioned in the text are");
    ASSERT_EQ(text.questions[i].expected.size(), 4U);
    for (const std::string& number : text.questions[i].expected) {
      EXPECT_EQ(CountOf(Told(name, number), text.context), 1U);
      expected.insert(number);
    }
  }
  EXPECT_EQ(names.size(), 8U);
  EXPECT_EQ(expected.size(), 12U);
}

TEST(MakeNeedles, KeepsTheFillerAndCutsBetweenSentences) {
  const std::string filler = Filler(20'000);
  std::string rest = MakeNeedles(filler, Draw({.num_keys = 20})).context;
  for (const size_t at : PlacesOf("One of the special", rest)) {
    EXPECT_TRUE(at == 0 || rest.substr(0, at).ends_with(". ") || rest[at - 1] == '\n' ||
                rest.substr(0, at).ends_with("? ") || rest.substr(0, at).ends_with("\" "))
        << rest.substr(at > 40 ? at - 40 : 0, 60);
  }
  for (size_t at = 0; (at = rest.find("One of the special")) != std::string::npos;) {
    rest.erase(at, rest.find(". ", at) + 2 - at);
  }
  EXPECT_EQ(rest, filler);
}

TEST(DrawNeedles, NeedlesAreAnywhere) {
  double least = 1.0, most = 0.0;
  for (const NeedleKey& key : Draw({.num_keys = 200}).keys) {
    least = std::min(least, key.values[0].depth);
    most = std::max(most, key.values[0].depth);
  }
  EXPECT_LT(least, 0.1);
  EXPECT_GT(most, 0.9);
}

TEST(DrawNeedles, DepthIsAllThatItChanges) {
  const Needles anywhere = Draw({.num_keys = 3});
  Needles there = Draw({.num_keys = 3, .depth = 0.25});
  EXPECT_EQ(there.keys[0].values[0].depth, 0.25);
  EXPECT_NE(anywhere.keys[0].values[0].depth, 0.25);
  there.keys[0].values[0].depth = anywhere.keys[0].values[0].depth;
  const std::string filler = Filler(5000);
  EXPECT_EQ(MakeNeedles(filler, there).context, MakeNeedles(filler, anywhere).context);
  EXPECT_EQ(there.keys[2].values[0].depth, anywhere.keys[2].values[0].depth);
}

TEST(DrawNeedles, DistractorsNeverEqualAnswers) {
  const Needles needles = Draw({.num_keys = 100, .values_per_key = 2, .num_distractors = kMaxLines - 100});
  std::set<std::string> names;
  std::set<int64_t> numbers;
  for (const auto* keys : {&needles.keys, &needles.distractors}) {
    for (const NeedleKey& key : *keys) {
      names.insert(key.name);
      for (const HiddenNumber& value : key.values) numbers.insert(value.number);
    }
  }
  EXPECT_EQ(names.size(), 10'000U);
  EXPECT_EQ(numbers.size(), 10'100U);
  EXPECT_GE(*numbers.begin(), 1'000'000);
  EXPECT_LE(*numbers.rbegin(), 9'999'999);
  const AskedText text = MakeNeedlesOnly(needles, 500);
  ExpectToldOnce(needles.keys, text.context);
  ExpectToldOnce({needles.distractors.begin(), needles.distractors.begin() + 500}, text.context);
  EXPECT_EQ(CountOf("One of the special", text.context), 700U);
}

TEST(DrawNeedles, SeedFixesThem) {
  const NeedleOptions options = {.num_keys = 3, .values_per_key = 2, .num_questions = 2, .num_distractors = 5};
  const auto context = [&](uint64_t seed) { return MakeNeedlesOnly(Draw(options, seed), 5).context; };
  EXPECT_EQ(context(4), context(4));
  EXPECT_NE(context(4), context(5));
  EXPECT_EQ(Sha256Hex(context(4)), "25de864457eabacae53d947fdfbad1b6c83876cccf9dd1758c8f506c127b6b56");
}

TEST(MakeWordNeedle, TellsOnceAndAsks) {
  const WordNeedle needle = {.words = "sit in a tree and eat a pear", .depth = 0.4};
  const AskedText text = MakeWordNeedle("One two. Three four.", needle);
  EXPECT_EQ(text.context, "The best thing to do in Paris is sit in a tree and eat a pear. One two. Three four.");
  ASSERT_EQ(text.questions.size(), 1U);
  EXPECT_TRUE(text.questions[0].text.starts_with("\n\n"));
  EXPECT_TRUE(text.questions[0].text.ends_with("The best thing to do in Paris is"));
  EXPECT_THAT(text.questions[0].expected, ElementsAre(needle.words));
  EXPECT_EQ(MakeWordNeedle("", needle).context, "The best thing to do in Paris is sit in a tree and eat a pear.");
}

TEST(DrawWordNeedle, WordsAndDepthsDiffer) {
  std::set<std::string> words;
  std::set<double> depths;
  Rng rng(1);
  const std::string filler = Filler(3000);
  for (int i = 0; i < 50; ++i) {
    const WordNeedle needle = DrawWordNeedle(rng);
    EXPECT_TRUE(needle.words.starts_with("sit in "));
    EXPECT_EQ(CountOf(" and eat a ", needle.words), 1U);
    EXPECT_EQ(CountOf(needle.words, MakeWordNeedle(filler, needle).context), 1U);
    words.insert(needle.words);
    depths.insert(needle.depth);
  }
  EXPECT_GT(words.size(), 25U);
  EXPECT_EQ(depths.size(), 50U);
  Rng same(1);
  EXPECT_EQ(DrawWordNeedle(same).words, "sit in the back row of the puppet theatre and eat a honey doughnut");
}

TEST(ValidateNeedleOptions, NamesWhatIsOutOfRange) {
  const auto message = [](const NeedleOptions& options) { return ValidateNeedleOptions(options).message(); };
  EXPECT_TRUE(ValidateNeedleOptions({}).ok());
  EXPECT_TRUE(ValidateNeedleOptions({.num_keys = 2, .num_distractors = 9998, .depth = 1.0}).ok());
  EXPECT_THAT(message({.num_keys = 0}), HasSubstr("number of keys is 0, expected 1 to 10000"));
  EXPECT_THAT(message({.values_per_key = 101}), HasSubstr("values per key is 101, expected 1 to 100"));
  EXPECT_THAT(message({.num_keys = 2, .num_questions = 3}), HasSubstr("number of questions is 3, expected 1 to 2"));
  EXPECT_THAT(message({.num_keys = 2, .num_distractors = 9999}), HasSubstr("is 9999, expected 0 to 9998"));
  EXPECT_THAT(message({.num_distractors = -1}), HasSubstr("number of distractors is -1"));
  EXPECT_THAT(message({.depth = 1.5}), HasSubstr("depth is 1.5, expected 0 to 1"));
  EXPECT_THAT(message({.depth = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("depth is nan"));
  EXPECT_THAT(message({.values_per_key = 2, .depth = 0.5}), HasSubstr("1 questions and 2 values per key"));
  EXPECT_THAT(message({.num_keys = 2, .num_questions = 2, .depth = 0.5}), HasSubstr("2 questions"));
}

}  // namespace
}  // namespace headwise
