#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/head_plan.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/json.h"
#include "kv/rule_json.h"

namespace headwise {
namespace {

using Kind = TokenSelector::Kind;

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ModelShape TinyShape() {
  return {.architecture = "llama", .num_layers = 2, .num_q_heads = 6, .num_kv_heads = 3, .head_dim = 16};
}

HeadRule Moa(double alpha, double beta) {
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  rule.sink = 64;
  rule.alpha = alpha;
  rule.beta = beta;
  return rule;
}

HeadRule Razor(int64_t min_recent, double divisor) {
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticRazor;
  rule.sink = 4;
  rule.min_recent = min_recent;
  rule.divisor = divisor;
  rule.compensate = true;
  rule.start = RuleStart::kEndOfPrompt;
  return rule;
}

// One rule of every kind, every provenance field set, numbers that only round-trip when all digits are written.
HeadPlan EveryKind() {
  HeadPlan plan = HeadPlan::Dense(TinyShape());
  plan.At(0, 1) = HeadRule::Stream(4, 64);
  plan.At(0, 2) = HeadRule::Stream(0, 1);
  plan.At(0, 2).positions = Positions::kCache;
  plan.At(1, 0) = Moa(-1024, 0.1);
  plan.At(1, 1) = Razor(4000, 1.0 / 3.0 + 1);
  plan.At(1, 2) = HeadRule::Stream(16, 128);
  plan.At(1, 2).compensate = true;
  plan.source_hash = "0123abcd";
  plan.method = "test \"quoted\" \\ \n";
  plan.parameters_json = R"({"lambda":0.05,"nested":{"list":[1,2]},"steps":2000})";
  plan.data_hash = "feed";
  plan.seed = std::numeric_limits<uint64_t>::max();
  plan.notes = {"first", "second: größer"};
  plan.scores = {1.0 / 3, 0, 1, -1e-300, 5e-324, 0.1};
  return plan;
}

void ExpectSame(const HeadPlan& a, const HeadPlan& b) {
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.rules, b.rules);
  EXPECT_EQ(a.source_hash, b.source_hash);
  EXPECT_EQ(a.method, b.method);
  EXPECT_EQ(a.parameters_json, b.parameters_json);
  EXPECT_EQ(a.data_hash, b.data_hash);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.notes, b.notes);
  EXPECT_EQ(a.scores, b.scores);
  EXPECT_EQ(a.tokens, b.tokens);
}

TEST(PlanIo, RoundTripsEveryField) {
  const HeadPlan plan = EveryKind();
  const std::string text = SerializeHeadPlan(plan);
  const auto back = ParseHeadPlan(text, "plan");
  ASSERT_TRUE(back.ok()) << back.status().message();
  ExpectSame(plan, *back);
  EXPECT_EQ(SerializeHeadPlan(*back), text);
}

HeadPlan EverySelector() {
  HeadPlan plan = HeadPlan::Dense(TinyShape());
  plan.At(0, 0) = HeadRule::Stream(4, 500);
  plan.At(0, 0).select = {.kind = Kind::kH2o, .recent_share = 1.0 / 3.0};
  plan.At(0, 0).compensate = true;
  plan.At(0, 1) = Moa(100, 0.1);
  plan.At(0, 1).select.kind = Kind::kTova;
  plan.At(1, 0) = HeadRule::Stream(0, 500);
  plan.At(1, 0).start = RuleStart::kEndOfPrompt;
  plan.At(1, 0).select = {.kind = Kind::kSnapKv, .window = 16, .kernel = 5, .pooling = TokenSelector::Pooling::kMean};
  plan.At(1, 1) = HeadRule::Stream(4, 500);
  plan.At(1, 1).select.kind = Kind::kKeyNorm;
  return plan;
}

TEST(PlanIo, RoundTripsHeadsThatSelectByScore) {
  const HeadPlan plan = EverySelector();
  const std::string text = SerializeHeadPlan(plan);
  EXPECT_THAT(text, AllOf(HasSubstr("\"headwise_plan\": 2,"),
                          HasSubstr("\"compensate\": false, \"select\": {\"by\": \"snapkv\", \"window\": 16, "
                                    "\"kernel\": 5, \"pooling\": \"mean\"}}")));
  const auto back = ParseHeadPlan(text, "plan");
  ASSERT_TRUE(back.ok()) << back.status().message();
  ExpectSame(plan, *back);
  EXPECT_EQ(SerializeHeadPlan(*back), text);
  // Builds that know no selectors read what has none.
  EXPECT_THAT(SerializeHeadPlan(EveryKind()), HasSubstr("\"headwise_plan\": 1,"));
}

HeadPlan WithTokenLists() {
  HeadPlan plan = EverySelector();
  plan.At(0, 1).select = {.kind = Kind::kFastGen, .recent_share = 0.25, .punctuation = true};
  plan.At(1, 1).select = {.kind = Kind::kFastGen, .recent_share = 0};
  plan.tokens = {.special = {0, 2, 500}, .punctuation = {1, 17}};
  return plan;
}

// A mean of what is dropped, of heads that drop something, each for itself.
TEST(PlanIo, WhichSelectorsMayCompensate) {
  HeadRule rule = HeadRule::Stream(4, 500);
  rule.start = RuleStart::kEndOfPrompt;
  rule.compensate = true;
  for (const Kind kind :
       {Kind::kH2o, Kind::kFastGen, Kind::kTova, Kind::kSnapKv, Kind::kKeyNorm, Kind::kKeyDiff, Kind::kExpected}) {
    rule.select = {.kind = kind};
    EXPECT_TRUE(ValidateRule(rule).ok()) << ValidateRule(rule).message();
  }
  for (const Kind kind : {Kind::kAdaKv, Kind::kQuest, Kind::kInfLlm}) {
    rule.select = {.kind = kind};
    if (kind == Kind::kInfLlm) rule.select.block = 32;
    EXPECT_THAT(ValidateRule(rule).message(), HasSubstr("\"compensate\" cannot be combined with \"select\" by adakv"));
  }
}

TEST(PlanIo, RoundTripsListsOfTokens) {
  const HeadPlan plan = WithTokenLists();
  const std::string text = SerializeHeadPlan(plan);
  EXPECT_THAT(text,
              AllOf(HasSubstr("\"select\": {\"by\": \"fastgen\", \"recent_share\": 0.25, \"punctuation\": true}}"),
                    HasSubstr("\"tokens\": {\"special\": [0, 2, 500],"), HasSubstr("\"punctuation\": [1, 17]}")));
  const auto back = ParseHeadPlan(text, "plan");
  ASSERT_TRUE(back.ok()) << back.status().message();
  ExpectSame(plan, *back);
  EXPECT_EQ(SerializeHeadPlan(*back), text);
}

TEST(PlanIo, RefusesListsOfTokensThatAreNone) {
  const auto error_of = [](TokenLists tokens) {
    HeadPlan plan = WithTokenLists();
    plan.tokens = std::move(tokens);
    return std::string(ValidatePlan(plan, "plan").message());
  };
  EXPECT_THAT(error_of({.special = {4, 4}, .punctuation = {}}), HasSubstr("\"special\": found 4 before 4"));
  EXPECT_THAT(error_of({.special = {}, .punctuation = {7, 3}}), HasSubstr("\"punctuation\": found 7 before 3"));
  EXPECT_THAT(error_of({.special = {-1}, .punctuation = {}}), HasSubstr("\"special\": found -1"));
  EXPECT_THAT(error_of({.special = {1, 5}, .punctuation = {5}}), HasSubstr("5 is among the special ones"));
  EXPECT_THAT(error_of({}), HasSubstr("the plan lists no tokens"));
  HeadPlan unasked = EverySelector();
  unasked.tokens.special = {1};
  EXPECT_THAT(ValidatePlan(unasked, "plan").message(), HasSubstr("no head selects by \"fastgen\""));
  std::string text = SerializeHeadPlan(WithTokenLists());
  const size_t at = text.find("[0, 2, 500]");
  for (const char* wrong : {"[0, -2]", "[0, 4294967296]", "[\"a\"]", "{}", "[1.5]"}) {
    std::string other = text;
    other.replace(at, std::string_view("[0, 2, 500]").size(), wrong);
    EXPECT_THAT(ParseHeadPlan(other, "plan").status().message(), HasSubstr("\"special\" is not a list of token ids"))
        << wrong;
  }
  text.insert(at - std::string_view("\"special\": ").size(), "\"spaces\": [3], ");
  EXPECT_THAT(ParseHeadPlan(text, "plan").status().message(), HasSubstr("\"spaces\""));
}

TEST(PlanIo, HeadsOfALayerThatShareHaveOneRule) {
  HeadPlan plan = EverySelector();
  for (int64_t kv_head = 0; kv_head < 2; ++kv_head) {
    plan.At(0, kv_head) = HeadRule::Stream(2, 100);
    plan.At(0, kv_head).start = RuleStart::kEndOfPrompt;
    plan.At(0, kv_head).select = {.kind = Kind::kAdaKv, .window = 16, .floor = 0.5};
  }
  plan.At(1, 0).select = {.kind = Kind::kExpected, .window = 0, .epsilon = 0.02};
  plan.At(1, 1).select.kind = Kind::kKeyDiff;
  const std::string text = SerializeHeadPlan(plan);
  EXPECT_THAT(text, HasSubstr("\"select\": {\"by\": \"adakv\", \"window\": 16, \"kernel\": 7, \"pooling\": \"max\", "
                              "\"floor\": 0.5}"));
  EXPECT_THAT(text, HasSubstr("{\"by\": \"expected\", \"window\": 0, \"epsilon\": 0.02}"));
  EXPECT_THAT(text, HasSubstr("{\"by\": \"keydiff\"}"));
  const auto read = ParseHeadPlan(text, "plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->rules, plan.rules);
  plan.At(0, 1).recent = 101;
  EXPECT_THAT(ParseHeadPlan(SerializeHeadPlan(plan), "plan").status().message(),
              HasSubstr("layer 0: KV heads 0 and 1 select by \"adakv\" and have different rules"));
  plan.At(0, 1) = plan.At(0, 0);
  plan.At(1, 0).select.epsilon = -1;
  EXPECT_THAT(ValidatePlan(plan, "plan").message(), HasSubstr("\"epsilon\" is -1"));
  plan.At(1, 0).select.epsilon = 0;
  plan.At(0, 1).select.floor = 1.5;
  EXPECT_THAT(ValidatePlan(plan, "plan").message(), HasSubstr("\"floor\" is 1.5"));
  plan.At(0, 1).select = {.kind = Kind::kSnapKv, .floor = 0.5};
  EXPECT_THAT(ValidatePlan(plan, "plan").message(), HasSubstr("options that its kind does not have"));
}

TEST(PlanIo, HeadsThatReadBlocksComeBack) {
  HeadPlan plan = EverySelector();
  plan.At(0, 1) = HeadRule::Stream(4, 60);
  plan.At(0, 1).start = RuleStart::kEndOfPrompt;
  plan.At(0, 1).select = {.kind = Kind::kQuest, .block = 32};
  const std::string text = SerializeHeadPlan(plan);
  EXPECT_THAT(text, HasSubstr(R"("select": {"by": "quest", "block": 32})"));
  EXPECT_THAT(text, HasSubstr(R"("headwise_plan": 2)"));
  const auto read = ParseHeadPlan(text, "plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->rules, plan.rules);
  for (const int64_t block : {0, 8, 24, -16}) {
    plan.At(0, 1).select.block = block;
    EXPECT_THAT(ValidateRule(plan.At(0, 1)).message(), HasSubstr("multiple of 16"));
  }
  plan.At(0, 1).select.block = 16;
  plan.At(0, 1).start = RuleStart::kFirstToken;
  EXPECT_THAT(ValidateRule(plan.At(0, 1)).message(), HasSubstr("end_of_prompt"));
  plan.At(0, 1).select.kind = Kind::kTova;
  EXPECT_TRUE(ValidateRule(plan.At(0, 1)).ok());
  plan.At(0, 1).select.block = 32;
  EXPECT_THAT(ValidateRule(plan.At(0, 1)).message(), HasSubstr("options that its kind does not have"));
}

TEST(PlanIo, RefusesSelectorsThatMeanNothing) {
  struct Row {
    const char* pointer;
    const char* replacement;
    const char* message;
  };
  for (const Row& row : {Row{"/layers/0/0/select/by", "\"nothing\"", "\"by\" is \"nothing\", expected"},
                         {"/layers/0/0/select", "4", "\"select\""},
                         {"/layers/0/0/select/window", "4", "\"window\" is not known"},
                         {"/layers/0/0/select/recent_share", "1.5", "\"recent_share\" is 1.5"},
                         {"/layers/0/0/compensate", "4", "\"compensate\""},
                         {"/layers/1/1/positions", "\"cache\"", "\"select\" needs"},
                         {"/layers/0/1/select/recent_share", "0.5", "\"recent_share\" is not known"},
                         {"/layers/1/0/from", "\"first_token\"", "needs \"from\": \"end_of_prompt\""},
                         {"/layers/1/0/select/kernel", "4", "\"kernel\" is 4, expected an odd number"},
                         {"/layers/1/0/select/window", "0", "\"window\" is 0"},
                         {"/layers/1/0/select/pooling", "\"sum\"", "\"pooling\" is \"sum\""},
                         {"/layers/1/1/select/kernel", "3", "\"kernel\" is not known"},
                         {"/headwise_plan", "1", "version 1"}}) {
    Json json = Json::parse(SerializeHeadPlan(EverySelector()));
    json[Json::json_pointer(row.pointer)] = Json::parse(row.replacement);
    const auto plan = ParseHeadPlan(json.dump(), "my-plan.json");
    ASSERT_FALSE(plan.ok()) << row.pointer;
    EXPECT_THAT(plan.status().message(), AllOf(HasSubstr("my-plan.json"), HasSubstr(row.message)));
  }
}

TEST(PlanIo, RoundTripsHeadsThatReadBlocks) {
  HeadPlan plan = HeadPlan::Dense(TinyShape());
  HeadRule& rule = plan.At(0, 1);
  rule = HeadRule::Stream(4, 512);
  rule.start = RuleStart::kEndOfPrompt;
  rule.select = {.kind = Kind::kInfLlm, .recent_share = 0.25, .block = 64, .representatives = 8};
  const std::string text = SerializeHeadPlan(plan);
  EXPECT_THAT(text, HasSubstr(R"({"by": "infllm", "recent_share": 0.25, "block": 64, "representatives": 8})"));
  const auto back = ParseHeadPlan(text, "plan");
  ASSERT_TRUE(back.ok()) << back.status().message();
  ExpectSame(plan, *back);
  const auto error_of = [](const HeadRule& wrong) { return std::string(ValidateRule(wrong).message()); };
  HeadRule wrong = rule;
  wrong.select.block = 16;
  EXPECT_THAT(error_of(wrong), HasSubstr(R"("block" is 16, expected a multiple of 16, 32 or more)"));
  wrong = rule;
  wrong.select.representatives = 65;
  EXPECT_THAT(error_of(wrong), HasSubstr(R"("representatives" is 65, expected 1 to 64)"));
  wrong = rule;
  wrong.start = RuleStart::kFirstToken;
  EXPECT_THAT(error_of(wrong), HasSubstr(R"("infllm" needs "from": "end_of_prompt")"));
}

TEST(PlanIo, DensePlanHasOnlyFullHeads) {
  const HeadPlan plan = HeadPlan::Dense(TinyShape());
  ASSERT_EQ(plan.rules.size(), 6u);
  for (const HeadRule& rule : plan.rules) EXPECT_EQ(rule, HeadRule::Full());
  const auto back = ParseHeadPlan(SerializeHeadPlan(plan), "plan");
  ASSERT_TRUE(back.ok()) << back.status().message();
  ExpectSame(plan, *back);
}

TEST(PlanIo, WritesOneRulePerLine) {
  EXPECT_THAT(SerializeHeadPlan(EveryKind()),
              HasSubstr("\n   {\"full\": false, \"sink\": 64, \"recent\": {\"alpha\": -1024.0, \"beta\": 0.1}, "
                        "\"positions\": \"text\", \"from\": \"first_token\", \"compensate\": false},\n"));
}

TEST(PlanIo, BytesThatAreNotUtf8DoNotBreakTheFile) {
  HeadPlan plan = HeadPlan::Dense(TinyShape());
  plan.notes = {"path \xff\xfe"};
  const auto back = ParseHeadPlan(SerializeHeadPlan(plan), "plan");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->notes[0], "path \xef\xbf\xbd\xef\xbf\xbd");
}

// ---- refusals: each row replaces one piece of a good plan
// ------------------------------------------------------------

struct Refusal {
  const char* name;
  const char* pointer;      // what to replace
  const char* replacement;  // JSON; nullptr removes it
  const char* message;      // part of the message
};

class PlanRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(PlanRefusal, SaysWhatIsWrong) {
  Json json = Json::parse(SerializeHeadPlan(EveryKind()));
  const Json::json_pointer pointer(GetParam().pointer);
  if (GetParam().replacement != nullptr) {
    json[pointer] = Json::parse(GetParam().replacement);
  } else {
    json.at(pointer.parent_pointer()).erase(pointer.back());
  }
  const auto plan = ParseHeadPlan(json.dump(), "my-plan.json");
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().message(), AllOf(HasSubstr("my-plan.json"), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All, PlanRefusal,
    ::testing::Values(
        Refusal{"NoVersion", "/headwise_plan", nullptr, "not a head plan"},
        Refusal{"OtherVersion", "/headwise_plan", "3", "plan version 3, this build reads versions up to 2"},
        Refusal{"UnknownKey", "/evict", "true", "\"evict\" is not known"},
        Refusal{"UnknownModelKey", "/model/num_heads", "8", "\"num_heads\" is not known"},
        Refusal{"NoModel", "/model", nullptr, "\"model\" is missing"},
        Refusal{"NoLayers", "/layers", nullptr, "\"layers\" is missing"},
        Refusal{"ZeroLayers", "/model/num_layers", "0", "\"num_layers\" is 0"},
        Refusal{"HugeShape", "/model/num_q_heads", "9007199254740992", "\"num_q_heads\" is 9007199254740992"},
        Refusal{"UnevenGroups", "/model/num_q_heads", "7", "7 query heads"},
        Refusal{"EmptyArchitecture", "/model/architecture", "\"\"", "\"architecture\" is empty"},
        Refusal{"TooFewLayers", "/model/num_layers", "3", "a list of 2, expected one list per layer, 3"},
        Refusal{"LayersObject", "/layers", "{}", "found a JSON object"},
        Refusal{"ShortLayer", "/layers/1", "[{\"full\": true}]", "layer 1 holds a list of 1"},
        Refusal{"LayerNumber", "/layers/1", "4", "layer 1 holds a JSON number"},
        Refusal{"RuleString", "/layers/1/2", "\"full\"", "layer 1, KV head 2"},
        Refusal{"NoFull", "/layers/0/1/full", nullptr, "\"full\" is missing"},
        Refusal{"FullNumber", "/layers/0/1/full", "1", "expected true or false"},
        Refusal{"FullWithSink", "/layers/0/0/sink", "4", "\"sink\" means nothing beside \"full\": true"},
        Refusal{"RuleUnknownKey", "/layers/0/1/window", "9", "\"window\" is not known"},
        Refusal{"NoSink", "/layers/0/1/sink", nullptr, "\"sink\" is missing"},
        Refusal{"NegativeSink", "/layers/0/1/sink", "-1", "\"sink\" is -1"},
        Refusal{"FractionalSink", "/layers/0/1/sink", "4.5", "\"sink\" is 4.5"},
        Refusal{"NoRecent", "/layers/0/1/recent", nullptr, "\"recent\" is missing"},
        Refusal{"ZeroRecent", "/layers/0/1/recent", "0", "\"recent\" is 0"},
        Refusal{"NegativeRecent", "/layers/0/1/recent", "-64", "\"recent\" is -64"},
        Refusal{"HugeRecent", "/layers/0/1/recent", "4611686018427387904", "\"recent\" is 4611686018427387904"},
        Refusal{"BeyondInt64", "/layers/0/1/recent", "18446744073709551615", "below 2^63"},
        Refusal{"StringRecent", "/layers/0/1/recent", "\"64\"", "expected a whole number"},
        Refusal{"EmptyElastic", "/layers/1/0/recent", "{}", "found neither"},
        Refusal{"MixedElastic", "/layers/1/0/recent", R"({"alpha": 1, "min": 2})", "found both"},
        Refusal{"NoBeta", "/layers/1/0/recent/beta", nullptr, "\"beta\" is missing"},
        Refusal{"NegativeBeta", "/layers/1/0/recent/beta", "-0.5", "\"beta\" is -0.5"},
        Refusal{"HugeAlpha", "/layers/1/0/recent/alpha", "1e300", "\"alpha\" is 1e+300"},
        Refusal{"ElasticUnknownKey", "/layers/1/0/recent/gamma", "1", "\"gamma\" is not known"},
        Refusal{"NegativeMin", "/layers/1/1/recent/min", "-1", "\"min\" is -1"},
        Refusal{"SmallDivisor", "/layers/1/1/recent/divisor", "0.5", "\"divisor\" is 0.5"},
        Refusal{"Positions", "/layers/0/1/positions", "\"absolute\"", "\"positions\" is \"absolute\""},
        Refusal{"From", "/layers/0/1/from", "\"start\"", "\"from\" is \"start\""},
        Refusal{"CompensateString", "/layers/0/1/compensate", "\"yes\"", "expected true or false"},
        Refusal{"CompensateInCache", "/layers/0/2/compensate", "true", "\"compensate\" needs"},
        Refusal{"ScoreString", "/scores/0/1", "\"0.5\"", "row 0 holds a JSON string"},
        Refusal{"ScoreNull", "/scores/1/1", "null", "row 1 holds a JSON null"},
        Refusal{"ScoreRow", "/scores/1", "[1, 2]", "row 1 is of another size"},
        Refusal{"ScoreRows", "/scores", "[[1, 2, 3]]", "found 1 rows"},
        Refusal{"ScoresObject", "/scores", "{}", "found a JSON object"},
        Refusal{"NegativeSeed", "/seed", "-1", "\"seed\""}, Refusal{"NotesString", "/notes", "\"one\"", "\"notes\""},
        Refusal{"NotesObject", "/notes", "{}", "\"notes\""}, Refusal{"NotesNumber", "/notes/0", "1", "\"notes\""},
        Refusal{"ParametersList", "/parameters", "[1]", "\"parameters\""},
        Refusal{"MethodNumber", "/method", "1", "\"method\" is 1"},
        Refusal{"HashNumber", "/source_hash", "1", "\"source_hash\" is 1"}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(PlanIo, RefusesTextThatIsNoJson) {
  const std::string good = SerializeHeadPlan(EveryKind());
  for (const std::string& text : {std::string(), good.substr(0, good.size() / 2), good + "x", std::string("[]")}) {
    EXPECT_FALSE(ParseHeadPlan(text, "plan").ok());
  }
  std::string overflow = good;
  overflow.replace(overflow.find("-1024.0"), 7, "1e999");
  EXPECT_FALSE(ParseHeadPlan(overflow, "plan").ok());
  overflow.replace(overflow.find("1e999"), 5, "NaN");
  EXPECT_FALSE(ParseHeadPlan(overflow, "plan").ok());
}

// The last of two would win without a word.
TEST(PlanIo, RefusesAKeyThatStandsTwiceAnywhere) {
  for (const auto& [once, twice] : {std::pair{R"("recent": 64)", R"("recent": 64, "recent": 128)"},
                                    {R"("alpha": -1024)", R"("alpha": 1, "alpha": -1024)"},
                                    {R"("num_layers": 2)", R"("num_layers": 3, "num_layers": 2)"},
                                    {R"("lambda":0.05)", R"("lambda":0.05, "lambda":0.05)"}}) {
    std::string text = SerializeHeadPlan(EveryKind());
    const size_t at = text.find(once);
    ASSERT_NE(at, std::string::npos) << once;
    text.replace(at, std::string_view(once).size(), twice);
    const std::string key = std::string(once).substr(0, std::string_view(once).find(':'));
    EXPECT_THAT(ParseHeadPlan(text, "p.json").status().message(), HasSubstr("p.json: " + key + " stands there twice"));
  }
}

TEST(PlanIo, RefusesParametersThatNestWithoutEnd) {
  HeadPlan plan = EveryKind();
  plan.parameters_json = "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}";
  EXPECT_FALSE(ParseHeadPlan(SerializeHeadPlan(plan), "plan").ok());
}

// ---- plans made in memory
// --------------------------------------------------------------------------------------------

TEST(ValidateRule, RefusesWhatCannotBeOrWouldBeLost) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(ValidateRule(HeadRule::Full()).ok());
  EXPECT_TRUE(ValidateRule(HeadRule::Stream(0, 1)).ok());
  EXPECT_TRUE(ValidateRule(Moa(-1024, 1)).ok());
  EXPECT_TRUE(ValidateRule(Razor(0, 1)).ok());
  EXPECT_FALSE(ValidateRule(HeadRule::Stream(0, 0)).ok());
  EXPECT_FALSE(ValidateRule(HeadRule::Stream(4, 0)).ok());
  EXPECT_FALSE(ValidateRule(HeadRule::Stream(-1, 4)).ok());
  EXPECT_FALSE(ValidateRule(HeadRule::Stream(std::numeric_limits<int64_t>::max(), 1)).ok());
  EXPECT_FALSE(ValidateRule(Moa(nan, 0)).ok());
  EXPECT_FALSE(ValidateRule(Moa(0, nan)).ok());
  EXPECT_FALSE(ValidateRule(Moa(0, inf)).ok());
  EXPECT_FALSE(ValidateRule(Razor(0, nan)).ok());
  EXPECT_FALSE(ValidateRule(Razor(0, 0)).ok());
  HeadRule full = HeadRule::Full();
  full.sink = 4;
  EXPECT_FALSE(ValidateRule(full).ok());
  HeadRule stream = HeadRule::Stream(4, 64);
  stream.beta = 0.5;
  EXPECT_FALSE(ValidateRule(stream).ok());
}

TEST(ValidatePlan, RefusesSizesAndScoresThatDoNotFit) {
  HeadPlan plan = EveryKind();
  plan.rules.pop_back();
  EXPECT_THAT(ValidatePlan(plan, "p").message(), HasSubstr("p: 5 rules"));
  plan = EveryKind();
  plan.scores.push_back(1);
  EXPECT_THAT(ValidatePlan(plan, "p").message(), HasSubstr("p: 7 scores"));
  plan = EveryKind();
  plan.scores[2] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(ValidatePlan(plan, "p").message(), HasSubstr("finite"));
  plan = EveryKind();
  plan.parameters_json = "[]";
  EXPECT_FALSE(ValidatePlan(plan, "p").ok());
  plan.parameters_json = "{";
  EXPECT_FALSE(ValidatePlan(plan, "p").ok());
}

TEST(CheckPlanFits, NamesBothShapes) {
  const HeadPlan plan = EveryKind();
  EXPECT_TRUE(CheckPlanFits(plan, TinyShape(), "p").ok());
  ModelShape other = TinyShape();
  other.num_layers = 4;
  EXPECT_THAT(CheckPlanFits(plan, other, "p").message(), AllOf(HasSubstr("p: the plan is for llama with 2 layers"),
                                                               HasSubstr("the model is llama with 4 layers")));
  other = TinyShape();
  other.architecture = "qwen2";
  EXPECT_FALSE(CheckPlanFits(plan, other, "p").ok());
}

// ---- files
// -----------------------------------------------------------------------------------------------------------

std::filesystem::path FreshFolder(const char* name) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(PlanFile, WritesAndReadsBack) {
  const std::string path = FreshFolder("headwise_plan_file") / "plan.json";
  ASSERT_TRUE(WriteHeadPlan(EveryKind(), path).ok());
  const auto back = ReadHeadPlan(path);
  ASSERT_TRUE(back.ok()) << back.status().message();
  ExpectSame(EveryKind(), *back);
  EXPECT_EQ(ReadHeadPlan(path + ".missing").status().code(), StatusCode::kNotFound);
}

TEST(PlanFile, RefusesToWriteAPlanThatCouldNotBeRead) {
  const auto folder = FreshFolder("headwise_plan_invalid");
  HeadPlan plan = EveryKind();
  plan.At(0, 1).recent = 0;
  EXPECT_FALSE(WriteHeadPlan(plan, folder / "plan.json").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

// A file-size limit makes write() fail half-way, as a full disk does.
TEST(PlanFile, AWriteThatFailsHalfwayLeavesTheOldFile) {
  const auto folder = FreshFolder("headwise_plan_full_disk");
  const std::string path = folder / "plan.json";
  ASSERT_TRUE(WriteHeadPlan(HeadPlan::Dense(TinyShape()), path).ok());
  const std::string old_text = ReadFile(path).value();

  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = WriteHeadPlan(EveryKind(), path);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_EQ(status.code(), StatusCode::kIo) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(path));
  EXPECT_EQ(ReadFile(path).value(), old_text);
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) num_files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(num_files, 1u) << "a partial file was left behind";
}

// ---- the rule tables of the golden files ----------------------------------------------------------------------------

constexpr ModelShape GoldenShape() {
  return {.architecture = "llama", .num_layers = 8, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 48};
}

std::vector<HeadRule> GoldenRules(const char* name, const char* key) {
  const auto json = ReadJsonFile(std::string(HEADWISE_SOURCE_DIR "/tests/golden/cache_rules/") + name + ".json");
  EXPECT_TRUE(json.ok());
  const auto rules = ParseRuleTable(json->at(key), GoldenShape(), name);
  EXPECT_TRUE(rules.ok()) << rules.status().message();
  return rules.ok() ? *rules : std::vector<HeadRule>{};
}

TEST(GoldenRules, AllParseToWhatTheirDescriptionSays) {
  EXPECT_EQ(GoldenRules("1_dense", "plan"), std::vector<HeadRule>(32, HeadRule::Full()));
  EXPECT_EQ(GoldenRules("2_stream", "plan"), std::vector<HeadRule>(32, HeadRule::Stream(4, 64)));

  std::vector<HeadRule> duo(32, HeadRule::Stream(16, 128));
  duo[3 * 4 + 1] = duo[3 * 4 + 3] = HeadRule::Full();
  EXPECT_EQ(GoldenRules("3_duo", "plan"), duo);

  const auto moa = GoldenRules("4_moa", "plan");
  ASSERT_EQ(moa.size(), 32u);
  EXPECT_EQ(moa[0], HeadRule::Stream(4, 32));
  EXPECT_EQ(moa[1], HeadRule::Stream(16, 80));
  EXPECT_EQ(moa[2 * 4 + 3], HeadRule::Stream(16, 208));

  HeadRule in_cache = HeadRule::Stream(4, 64);
  in_cache.positions = Positions::kCache;
  EXPECT_EQ(GoldenRules("5_cache_positions", "plan"), std::vector<HeadRule>(32, in_cache));

  HeadRule razor = HeadRule::Stream(4, 64);
  razor.start = RuleStart::kEndOfPrompt;
  std::vector<HeadRule> dropped(32, razor);
  dropped[3 * 4 + 1] = dropped[3 * 4 + 3] = HeadRule::Full();
  EXPECT_EQ(GoldenRules("6_razor", "plan_dropped"), dropped);
  for (HeadRule& rule : dropped) rule.compensate = rule.kind != HeadRule::Kind::kFull;
  EXPECT_EQ(GoldenRules("6_razor", "plan_compensated"), dropped);
}

}  // namespace
}  // namespace headwise
