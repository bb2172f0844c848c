#include <headwise/grammar.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "grammar/call_grammar.h"
#include "grammar/grammar_engine.h"
#include "support/validate_schema.h"
#include "text/byte_level.h"
#include "text/test_tokenizers.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kEnd = 256;     // special tokens
constexpr int32_t kMarker = 257;  // its text is that of a string's end, which it must never stand for
constexpr int64_t kVocabSize = 320;

// One token for each byte, two special ones, and texts of several bytes, whole characters and parts of two.
const std::vector<std::string>& Pieces() {
  static const std::vector<std::string> pieces = {
      "{\"",  "\":",    "\": \"", "\", \"",   "\"}",      "}}",       "]}",  "{}",     "[]",   "tr",    "true", "null",
      "ab",   "abc",    "name",   "na",       "12",       "120",      "-1",  ".5",     "e+",   "\\u00", "\\n",  "  ",
      "\n\n", " \"a\"", ", ",     "\xC3\xA4", "\xA4\xC3", "\xE4\xBD", "yes", "no way", "a\"b", "\\\""};
  return pieces;
}

std::unique_ptr<Tokenizer> MakeTokenizer() {
  Json json = ByteTokenizerJson({"<end>", "\"}"});
  int32_t id = 258;
  for (const std::string& piece : Pieces()) {
    std::string token;
    AppendByteLevel(piece, token);
    json["model"]["vocab"][token] = id++;
  }
  return MustParse(json);
}

class Grammar : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!GrammarCompiler::IsBuilt()) GTEST_SKIP() << "built without xgrammar";
    tokenizer_ = MakeTokenizer();
    auto compiler = GrammarCompiler::Create(*tokenizer_, kVocabSize);
    ASSERT_TRUE(compiler.ok()) << compiler.status().message();
    compiler_ = *std::move(compiler);
  }

  std::shared_ptr<const TokenConstraint> Must(Result<std::shared_ptr<const TokenConstraint>> made) const {
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *made : nullptr;
  }
  std::shared_ptr<const TokenConstraint> Schema(const std::string& text) const {
    return Must(compiler_->Compile({.kind = GrammarKind::kJsonSchema, .text = text}));
  }
  std::string TextOf(int32_t id) const {
    return tokenizer_->IsSpecial(id) ? std::string() : std::string(tokenizer_->BytesOf(id));
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

// A text on its way.
class Walk {
 public:
  explicit Walk(const TokenConstraint& constraint) : state_(*constraint.Begin()) { Fill(); }

  bool may_end() const { return may_end_; }
  bool Allows(int32_t id) const { return (mask_[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0; }
  std::vector<int32_t> Allowed() const {
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < kVocabSize; ++id) {
      if (Allows(id)) ids.push_back(id);
    }
    return ids;
  }
  void Go(int32_t id) {
    ASSERT_TRUE(Allows(id)) << id;
    const Status status = state_->Accept(id);
    ASSERT_TRUE(status.ok()) << status.message();
    Fill();
  }
  // Byte by byte; false where one may not come.
  bool GoText(std::string_view text) {
    for (const char c : text) {
      const auto id = static_cast<int32_t>(static_cast<unsigned char>(c));
      if (!Allows(id)) return false;
      Go(id);
    }
    return true;
  }

 private:
  void Fill() {
    const Result<bool> may_end = state_->FillMask(mask_);
    ASSERT_TRUE(may_end.ok()) << may_end.status().message();
    may_end_ = *may_end;
  }

  std::unique_ptr<ConstraintState> state_;
  std::vector<uint32_t> mask_ = std::vector<uint32_t>(kVocabSize / 32, ~uint32_t{0});
  bool may_end_ = false;
};

bool Accepts(const TokenConstraint& constraint, std::string_view text) {
  Walk walk(constraint);
  return walk.GoText(text) && walk.may_end();
}

// Draws one of what may come at every step; nothing where the text has no end by then.
template <typename Rng>
std::optional<std::string> RandomText(const TokenConstraint& constraint, Rng& rng, const Tokenizer& tokenizer,
                                      size_t max_tokens) {
  Walk walk(constraint);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < max_tokens; ++i) {
    const std::vector<int32_t> allowed = walk.Allowed();
    const size_t num_ways = allowed.size() + (walk.may_end() ? 1 : 0);
    EXPECT_GT(num_ways, 0u) << "a dead end behind " << tokenizer.Decode(ids);
    if (num_ways == 0) return std::nullopt;
    // The end is as likely as all the rest.
    if (walk.may_end() && (allowed.empty() || rng() % 2 == 0)) return tokenizer.Decode(ids);
    // Closing what is open must not be too rare among a hundred letters.
    std::vector<int32_t> closing;
    for (const int32_t id : allowed) {
      if (id == '"' || id == '}' || id == ']') closing.push_back(id);
    }
    const std::vector<int32_t>& from = !closing.empty() && rng() % 4 == 0 ? closing : allowed;
    const int32_t id = from[rng() % from.size()];
    ids.push_back(id);
    walk.Go(id);
  }
  return std::nullopt;
}

const char* const kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name"],
        "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 4},
        "b": {"type": ["number", "null"]}, "c": {"enum": ["x", 1, null, {"y": [true]}]}, "d": {"const": "a\"b\\"}},
        "required": ["a", "b", "c", "d"], "additionalProperties": false})",
    R"({"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 120}, "minItems": 1, "maxItems": 3})",
    R"({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": false, "minItems": 2})",
    R"({"anyOf": [{"type": "string", "pattern": "^[a-c]{1,3}(-[0-9]+)?$"}, {"type": "boolean"}]})",
    R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "p"}}, "required": ["k"]},
                  {"type": "object", "properties": {"k": {"const": "q"}, "v": {"type": "null"}}, "required": ["k"]}]})",
    R"({"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"extra": {"type": "boolean"}}, "required": ["extra"]}],
        "$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer", "exclusiveMinimum": 0}},
                           "required": ["id"]}}})",
    R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "boolean"},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}}, "required": ["v", "next"],
        "additionalProperties": false}}})",
    R"({"type": "object"})",
    R"({"type": "object", "additionalProperties": {"type": "integer", "multipleOf": 3}})",
    R"({"type": "number", "minimum": 0.5, "maximum": 2})",
    R"({"type": "string", "pattern": "^[^a]+b?$"})",
    R"({"type": "string", "pattern": "^(\\w|\"|\\\\)+$"})",
    R"({"type": "integer", "minimum": 7})",
};

// Every token may come exactly where its bytes may, one behind the other.
TEST_F(Grammar, MasksAreThoseOfTheBytes) {
  std::mt19937 rng(3);
  for (const char* schema : kSchemas) {
    SCOPED_TRACE(schema);
    const auto constraint = Schema(schema);
    ASSERT_NE(constraint, nullptr);
    for (int round = 0; round < 3; ++round) {
      Walk walk(*constraint);
      std::string text;
      for (int step = 0; step < 25; ++step) {
        for (int32_t id = 256; id < kVocabSize; ++id) {
          const std::string token = TextOf(id);
          Walk bytes(*constraint);
          ASSERT_TRUE(bytes.GoText(text));
          EXPECT_EQ(walk.Allows(id), !token.empty() && bytes.GoText(token)) << "\"" << token << "\" behind " << text;
        }
        const std::vector<int32_t> allowed = walk.Allowed();
        if (allowed.empty()) break;
        const int32_t id = allowed[rng() % allowed.size()];
        text += TextOf(id);
        walk.Go(id);
      }
    }
  }
}

TEST_F(Grammar, MasksOfAFiniteLanguageAreItsPrefixes) {
  const std::vector<std::string> choices = {"yes", "no way", "abc", "ab\"\n", "\xC3\xA4\xC3\xB6", "\\d{2}"};
  const auto constraint = Must(compiler_->Compile({.kind = GrammarKind::kChoice, .choices = choices}));
  ASSERT_NE(constraint, nullptr);
  for (const std::string& choice : choices) {
    for (size_t cut = 0; cut <= choice.size(); ++cut) {
      const std::string text = choice.substr(0, cut);
      Walk walk(*constraint);
      ASSERT_TRUE(walk.GoText(text));
      EXPECT_EQ(walk.may_end(), std::ranges::find(choices, text) != choices.end()) << text;
      for (int32_t id = 0; id < kVocabSize; ++id) {
        const std::string token = TextOf(id);
        const bool is_prefix = std::ranges::any_of(
            choices, [&](const std::string& each) { return !token.empty() && each.starts_with(text + token); });
        EXPECT_EQ(walk.Allows(id), is_prefix) << token << " behind " << text;
      }
    }
  }
}

TEST_F(Grammar, RandomTextsSatisfyTheirSchemas) {
  std::mt19937 rng(11);
  for (const char* schema : kSchemas) {
    SCOPED_TRACE(schema);
    const auto constraint = Schema(schema);
    ASSERT_NE(constraint, nullptr);
    const SchemaValidator validator(Json::parse(schema));
    int num_ended = 0;
    for (int round = 0; round < 150; ++round) {
      const auto text = RandomText(*constraint, rng, *tokenizer_, 400);
      if (!text) continue;
      ++num_ended;
      Json json;
      try {
        json = Json::parse(*text);
      } catch (const Json::out_of_range&) {
        continue;  // a number that no double holds
      } catch (const Json::parse_error& error) {
        FAIL() << error.what() << " in " << *text;
      }
      EXPECT_TRUE(validator.Accepts(json)) << *text;
    }
    EXPECT_GT(num_ended, 20);
  }
}

struct Case {
  const char* schema;
  std::vector<const char*> accepted;
  std::vector<const char*> refused;
};

TEST_F(Grammar, SchemasAcceptAndRefuse) {
  const Case cases[] = {
      {kSchemas[0],
       {R"({"name": "x"})", R"({"name":"","n":-12})", "{\n  \"name\": \"\\u00e4\",\n  \"n\": 0\n}"},
       {R"({"n": 1})", R"({"name": "x", "m": 1})", R"({"name": "x", "n": 1.5})", R"({"name": "x"} )", R"([])",
        "{\"name\": \"a\nb\"}", R"({"name": "x", "n": 012})"}},
      {kSchemas[1],
       {R"({"a": "abc", "b": 1.5e+3, "c": {"y":[true]}, "d": "a\"b\\"})",
        "{\"a\": \"\xC3\xA4\xE4\xBD\xA0\", \"b\": null, \"c\": 1, \"d\": \"a\\\"b\\\\\"}"},
       {R"({"a": "a", "b": 1, "c": 1, "d": "a\"b\\"})", R"({"a": "abcde", "b": 1, "c": 1, "d": "a\"b\\"})",
        R"({"a": "abc", "b": 1, "c": 2, "d": "a\"b\\"})", R"({"a": "abc", "b": "1", "c": 1, "d": "a\"b\\"})"}},
      {kSchemas[2], {"[-5]", "[0, 120]", "[1,2,3]"}, {"[]", "[121]", "[-6]", "[1,2,3,4]", "[1.0]"}},
      {kSchemas[3], {"[true, null]"}, {"[true]", "[null, true]", "[true, null, 1]"}},
      {kSchemas[4], {R"("abc-12")", R"("a")", "true"}, {R"("d")", R"("abca")", R"("a-")", "null"}},
      {kSchemas[7],
       {R"({"v": true, "next": {"v": false, "next": null}})"},
       {R"({"v": true})", R"({"v": 1, "next": null})"}},
      {R"({"type": "object"})", {"{}", R"({"a": [{"b": null}]})"}, {"[]", "1"}},
      {R"({})", {"{}", "1", "\"a\"", "null", "[[], {}]"}, {"nul", "[1,]"}},
      {R"({"type": "string", "format": "date"})", {R"("2024-02-29")"}, {R"("2024-2-29")", R"("yesterday")"}},
      {R"({"type": "string", "format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
      {R"({"type": "object", "patternProperties": {"^x_[a-z]+$": {"type": "null"}}, "additionalProperties": false})",
       {"{}", R"({"x_a": null})"},
       {R"({"y": null})", R"({"x_a": 1})"}},
      {R"({"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}})",
       {R"({"b": null, "a": null})", R"({"a": null})", "{}"},
       // In the order of the schema.
       {R"({"a": null, "b": null})"}},
  };
  for (const auto& [schema, accepted, refused] : cases) {
    const auto constraint = Schema(schema);
    ASSERT_NE(constraint, nullptr) << schema;
    for (const char* text : accepted) EXPECT_TRUE(Accepts(*constraint, text)) << schema << "\n" << text;
    for (const char* text : refused) EXPECT_FALSE(Accepts(*constraint, text)) << schema << "\n" << text;
  }
}

TEST_F(Grammar, HasGbnfAndExpressions) {
  const auto gbnf = Must(compiler_->Compile({.kind = GrammarKind::kGbnf, .text = R"gbnf(
      # a sum
      root ::= term ("+" term)*
      term ::= [0-9]{1,3} | "(" root ")"
  )gbnf"}));
  ASSERT_NE(gbnf, nullptr);
  for (const char* text : {"1", "12+(3+(4))", "123"}) EXPECT_TRUE(Accepts(*gbnf, text)) << text;
  for (const char* text : {"", "1234", "(1", "1+", "a"}) EXPECT_FALSE(Accepts(*gbnf, text)) << text;
  const auto regex = Must(compiler_->Compile({.kind = GrammarKind::kRegex, .text = R"([a-c]+@\d{2,3}\.(de|com))"}));
  ASSERT_NE(regex, nullptr);
  for (const char* text : {"a@12.de", "cab@123.com"}) EXPECT_TRUE(Accepts(*regex, text)) << text;
  for (const char* text : {"@12.de", "a@1.de", "a@12xde", "a@12.de "}) EXPECT_FALSE(Accepts(*regex, text)) << text;
  const auto json = Must(compiler_->Compile({.kind = GrammarKind::kJson}));
  ASSERT_NE(json, nullptr);
  EXPECT_TRUE(Accepts(*json, R"({"a": [1, {"b": "c"}]})"));
  EXPECT_FALSE(Accepts(*json, "[1]"));
}

// Every text of a few characters, beside the standard library's expressions.
TEST_F(Grammar, ExpressionsMatchWhatOthersMatch) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 4; ++i) {
    for (const char c : {'a', 'b', '-', '1'}) texts.push_back(texts[i] + c);
  }
  for (const char* pattern :
       {"(a|b)*a", "a?b?", "(ab+)?-", "(a{1,2}b){2}", "[^a]b*", "(a*b)*-?1+", "a{2,}", "(?:a|b)-", "\\d+", "\\w{2}",
        ".b", "((a|b)?-)?1", "(-[0-9]+)?", "a|b|", "(a|ab)(b|1)*", "[a-b1]{0,2}-"}) {
    const auto plain = Must(compiler_->Compile({.kind = GrammarKind::kRegex, .text = pattern}));
    const auto quoted = Schema(Json{{"type", "string"}, {"pattern", fmt::format("^({})$", pattern)}}.dump());
    ASSERT_TRUE(plain != nullptr && quoted != nullptr) << pattern;
    const std::regex expected(pattern);
    for (const std::string& text : texts) {
      const bool matches = std::regex_match(text, expected);
      EXPECT_EQ(Accepts(*plain, text), matches) << pattern << " of \"" << text << '"';
      EXPECT_EQ(Accepts(*quoted, '"' + text + '"'), matches) << pattern << " as a string of \"" << text << '"';
    }
  }
}

TEST_F(Grammar, SpecialTokensAreNoText) {
  const auto constraint = Schema(R"({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})");
  ASSERT_NE(constraint, nullptr);
  Walk walk(*constraint);
  ASSERT_TRUE(walk.GoText(R"({"a": "b)"));
  EXPECT_FALSE(walk.Allows(kEnd));
  EXPECT_FALSE(walk.Allows(kMarker));
  for (auto id = static_cast<int32_t>(258 + Pieces().size()); id < kVocabSize; ++id) EXPECT_FALSE(walk.Allows(id));
}

TEST_F(Grammar, SaysWhatItCannotCompile) {
  const std::pair<GrammarSource, const char*> cases[] = {
      {{.kind = GrammarKind::kGbnf, .text = "root ::= x"}, "grammar:"},
      {{.kind = GrammarKind::kGbnf, .text = "start ::= \"a\""}, "root"},
      {{.kind = GrammarKind::kGbnf, .text = "root ::= \"a"}, "grammar:"},
      {{.kind = GrammarKind::kRegex, .text = "(a"}, "regex:"},
      {{.kind = GrammarKind::kRegex, .text = "(?=a)b"}, "regex:"},
      {{.kind = GrammarKind::kRegex, .text = "a(?<=a)b"}, "regex:"},
      {{.kind = GrammarKind::kRegex, .text = "(a)\\1"}, "regex:"},
      {{.kind = GrammarKind::kRegex, .text = ""}, "regex:"},
      {{.kind = GrammarKind::kChoice}, "choice:"},
      {{.kind = GrammarKind::kChoice, .choices = {"a", ""}}, "choice:"},
      {{.kind = GrammarKind::kJsonSchema, .text = R"({"type": "string", "pattern": "(?!a)b"})"}, "schema:"},
      {{.kind = GrammarKind::kJsonSchema, .text = R"({"oneOf": [{"type": "string"}, {"const": "a"}]})"}, "oneOf"},
      {{.kind = GrammarKind::kJsonSchema, .text = "\xFF"}, "UTF-8"},
      {{.kind = GrammarKind::kJsonSchema, .text = R"({"type": "integer", "minimum": 3, "maximum": 2})"}, "schema:"},
  };
  for (const auto& [source, message] : cases) {
    const auto made = compiler_->Compile(source);
    ASSERT_FALSE(made.ok()) << source.text;
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidInput);
    EXPECT_THAT(made.status().message(), HasSubstr(message)) << source.text;
  }
  // And goes on.
  EXPECT_NE(Schema("{}"), nullptr);
}

CallGrammar Calls(CallGrammar::Text text) {
  CallGrammar calls;
  for (const char* name : {"f", "go"}) {
    calls.calls.push_back({.begin = fmt::format("<call>{{\"name\": \"{}\", \"arguments\": ", name),
                           .schema = R"({"type":"object","properties":{"x":{"type":"boolean"}},"required":["x"]})",
                           .end = "}</call>"});
  }
  calls.text = text;
  calls.trigger = "<call>";
  return calls;
}

constexpr const char* kCall = R"(<call>{"name": "go", "arguments": {"x": true}}</call>)";

TEST_F(Grammar, CallsStandAlone) {
  CallGrammar calls = Calls(CallGrammar::Text::kNone);
  calls.separator = "\n";
  const std::string call = kCall;
  const auto several = Must(compiler_->Compile(calls));
  ASSERT_NE(several, nullptr);
  EXPECT_TRUE(Accepts(*several, call));
  EXPECT_TRUE(Accepts(*several, call + "\n" + call));
  for (const std::string& text : {std::string(), "Hi " + call, call + call, call + "\n"}) {
    EXPECT_FALSE(Accepts(*several, text)) << text;
  }
  EXPECT_FALSE(Accepts(*several, R"(<call>{"name": "h", "arguments": {"x": true}}</call>)"));
  EXPECT_FALSE(Accepts(*several, R"(<call>{"name": "f", "arguments": {}}</call>)"));
  calls.several = false;
  const auto one = Must(compiler_->Compile(calls));
  ASSERT_NE(one, nullptr);
  EXPECT_TRUE(Accepts(*one, call));
  EXPECT_FALSE(Accepts(*one, call + "\n" + call));
}

TEST_F(Grammar, CallsFollowTexts) {
  const std::string call = kCall;
  CallGrammar calls = Calls(CallGrammar::Text::kBefore);
  const auto free = Must(compiler_->Compile(calls));
  ASSERT_NE(free, nullptr);
  for (const std::string& text :
       {std::string(), std::string("Just <text> \xC3\xA4"), "Hi. " + call, call + "\n" + call}) {
    EXPECT_TRUE(Accepts(*free, text)) << text;
  }
  EXPECT_FALSE(Accepts(*free, R"(So <call>{"name": "h")"));
  EXPECT_FALSE(Accepts(*free, "So <call>{}"));
  Walk walk(*free);
  EXPECT_FALSE(walk.Allows(kEnd)) << "text has no special tokens";

  calls = Calls(CallGrammar::Text::kOr);
  calls.calls = {{.begin = "{\"name\": \"f\", \"parameters\": ", .schema = "{}", .end = "}"}};
  const auto either = Must(compiler_->Compile(calls));
  ASSERT_NE(either, nullptr);
  EXPECT_TRUE(Accepts(*either, "Hello {"));
  EXPECT_TRUE(Accepts(*either, R"({"name": "f", "parameters": [1]})"));
  EXPECT_FALSE(Accepts(*either, "{\"a"));
}

TEST_F(Grammar, MarkersComeBeforeCalls) {
  CallGrammar calls = Calls(CallGrammar::Text::kNone);
  calls.calls = {{.begin = "{\"name\": \"f\", \"arguments\": ", .schema = R"({"type":"null"})", .end = "}"}};
  calls.open = "[";
  calls.separator = ", ";
  calls.close = "]";
  calls.marker = kMarker;
  const auto alone = Must(compiler_->Compile(calls));
  ASSERT_NE(alone, nullptr);
  Walk walk(*alone);
  EXPECT_THAT(walk.Allowed(), ::testing::ElementsAre(kMarker));
  EXPECT_FALSE(walk.may_end());
  walk.Go(kMarker);
  EXPECT_TRUE(walk.GoText(R"([{"name": "f", "arguments": null}, {"name": "f", "arguments": null}])"));
  EXPECT_TRUE(walk.may_end());
  EXPECT_TRUE(walk.Allowed().empty());

  calls.text = CallGrammar::Text::kBefore;
  const auto behind = Must(compiler_->Compile(calls));
  ASSERT_NE(behind, nullptr);
  Walk text(*behind);
  EXPECT_TRUE(text.GoText("Well") && text.may_end());
  text.Go(kMarker);
  EXPECT_FALSE(text.may_end());
  EXPECT_TRUE(text.GoText(R"( [{"name": "f", "arguments": null}])"));
  EXPECT_TRUE(text.may_end());
}

// Either is seen from how it begins, also where both begin alike.
TEST_F(Grammar, CallsOrTextsOfAForm) {
  const std::string call = kCall;
  CallGrammar calls = Calls(CallGrammar::Text::kForm);
  calls.separator = "\n";
  calls.form = {.kind = GrammarKind::kJsonSchema,
                .text = R"({"type":"object","properties":{"s":{"enum":["<call>"]}},"required":["s"]})"};
  const auto either = Must(compiler_->Compile(calls));
  ASSERT_NE(either, nullptr);
  for (const std::string& text : {std::string(R"({"s": "<call>"})"), call, call + "\n" + call}) {
    EXPECT_TRUE(Accepts(*either, text)) << text;
  }
  for (const std::string& text : {std::string(), std::string("Hi"), std::string(R"({"s": "x"})"),
                                  R"({"s": "<call>"})" + call, call + R"({"s": "<call>"})", "Hi " + call}) {
    EXPECT_FALSE(Accepts(*either, text)) << text;
  }
  calls.form = {.kind = GrammarKind::kChoice, .choices = {"left", "<ca"}};
  const auto choice = Must(compiler_->Compile(calls));
  ASSERT_NE(choice, nullptr);
  for (const std::string& text : {std::string("left"), std::string("<ca"), call}) EXPECT_TRUE(Accepts(*choice, text));
  EXPECT_FALSE(Accepts(*choice, "<cal"));

  calls.calls = {{.begin = "{\"name\": \"f\", \"parameters\": ", .schema = R"({"type":"null"})", .end = "}"}};
  calls.form = {.kind = GrammarKind::kJson};
  const auto alike = Must(compiler_->Compile(calls));
  ASSERT_NE(alike, nullptr);
  EXPECT_TRUE(Accepts(*alike, R"({"name": "f", "parameters": null})"));
  EXPECT_TRUE(Accepts(*alike, R"({"name": "g", "age": [1, 2]})"));
  EXPECT_FALSE(Accepts(*alike, "Hello"));

  calls.form = {.kind = GrammarKind::kRegex, .text = "(a"};
  EXPECT_FALSE(compiler_->Compile(calls).ok());
}

TEST_F(Grammar, AMarkerOrATextOfAForm) {
  CallGrammar calls = Calls(CallGrammar::Text::kForm);
  calls.calls = {{.begin = "{\"name\": \"f\", \"arguments\": ", .schema = R"({"type":"null"})", .end = "}"}};
  calls.open = "[";
  calls.close = "]";
  calls.marker = kMarker;
  calls.form = {.kind = GrammarKind::kGbnf, .text = "root ::= \"yes\" | \"no\""};
  const auto either = Must(compiler_->Compile(calls));
  ASSERT_NE(either, nullptr);
  Walk text(*either);
  EXPECT_TRUE(text.Allows(kMarker));
  EXPECT_FALSE(text.may_end());
  EXPECT_TRUE(text.GoText("ye"));
  EXPECT_FALSE(text.Allows(kMarker)) << "it is a text now";
  EXPECT_TRUE(text.GoText("s") && text.may_end());
  Walk call(*either);
  call.Go(kMarker);
  EXPECT_FALSE(call.Allows(kMarker));
  EXPECT_TRUE(call.GoText(R"([{"name": "f", "arguments": null}])"));
  EXPECT_TRUE(call.may_end());
  EXPECT_FALSE(Accepts(*either, "maybe"));
}

TEST_F(Grammar, EndsWhatTakesTooLong) {
  const auto engine = MakeGrammarEngine(*tokenizer_, kVocabSize, std::chrono::milliseconds(0));
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto made = (*engine)->Compile(GrammarKind::kJsonSchema, R"({"type":"string","maxLength":100})");
  EXPECT_THAT(made.status().message(), HasSubstr("takes longer than 0 s"));
  EXPECT_NE(Must((*engine)->Compile(GrammarKind::kGbnf, "root ::= \"a\"")), nullptr) << "less than is looked at";
}

TEST_F(Grammar, CompilesForManyAtOnce) {
  std::vector<std::thread> threads;
  std::vector<int> num_ok(4, 0);
  for (size_t i = 0; i < num_ok.size(); ++i) {
    threads.emplace_back([&, i] {
      for (const char* schema : kSchemas) {
        const auto made = compiler_->Compile({.kind = GrammarKind::kJsonSchema, .text = schema});
        std::mt19937 rng(static_cast<uint32_t>(i));
        if (made.ok()) num_ok[i] += RandomText(**made, rng, *tokenizer_, 50).has_value() ? 1 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_ok, ::testing::Each(static_cast<int>(std::size(kSchemas))));
}

TEST(GrammarOfABuildWithout, IsRefusedByName) {
  if (GrammarCompiler::IsBuilt()) GTEST_SKIP() << "built with xgrammar";
  const auto tokenizer = MakeTokenizer();
  const auto compiler = GrammarCompiler::Create(*tokenizer, kVocabSize);
  EXPECT_EQ(compiler.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(compiler.status().message(), HasSubstr("without constrained decoding"));
}

}  // namespace
}  // namespace headwise
