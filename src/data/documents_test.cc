#include "data/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "data/choices.h"

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ParseDocuments, FieldsOfLongBench) {
  const auto cases = ParseDocuments(
      "{\"input\": \"Q\", \"context\": \"C\", \"answers\": [\"a\", \"b\"], \"all_classes\": null, \"length\": 7}\n\n"
      "{\"input\": \"\", \"context\": \"C\", \"answers\": [\"a\"], \"all_classes\": [\"x\"], \"dataset\": \"trec\"}",
      "d.jsonl");
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  ASSERT_EQ(cases->size(), 2U);
  EXPECT_THAT((*cases)[0].answers, ElementsAre("a", "b"));
  EXPECT_THAT((*cases)[0].all_classes, IsEmpty());
  EXPECT_THAT((*cases)[1].all_classes, ElementsAre("x"));
  EXPECT_EQ((*cases)[1].dataset, "trec");
}

TEST(ParseDocuments, ErrorsNameTheLine) {
  const auto message = [](const char* text) { return std::string(ParseDocuments(text, "d.jsonl").status().message()); };
  EXPECT_THAT(message("\n{\"input\": \"Q\"}"), HasSubstr("d.jsonl:2: \"context\""));
  EXPECT_THAT(message("{\"input\": \"Q\", \"context\": \"C\", \"answers\": []}"), HasSubstr("expected at least one"));
  EXPECT_THAT(message("{\"input\": \"Q\", \"context\": \"C\", \"answers\": [1]}"), HasSubstr("a list of texts"));
  EXPECT_THAT(message("{\"input\": \"\", \"context\": \"\", \"answers\": [\"a\"]}"), HasSubstr("are empty"));
  EXPECT_THAT(message(" \n"), HasSubstr("no cases"));
}

TEST(ParsePromptTable, TemplatesAreCutAtTheirPlaces) {
  const auto table = ParsePromptTable("{\"d\": {\"prompt\": \"A{context}B{input}C\", \"metric\": \"f1\"}}", "p.json");
  ASSERT_TRUE(table.ok()) << table.status().message();
  const DocumentPrompt& prompt = table->at("d");
  EXPECT_EQ(prompt.before + "|" + prompt.between + "|" + prompt.after, "A|B|C");
  EXPECT_EQ(prompt.max_new_tokens, 64);
  const auto bare = ParsePromptTable("{\"d\": {\"prompt\": \"{context}B\", \"metric\": \"f1\"}}", "p.json");
  EXPECT_EQ(bare->at("d").between, "B");  // an empty question follows
}

TEST(ParsePromptTable, ErrorsNameThePrompt) {
  for (const char* text : {"{input} {context}", "no place", "{context}{context}", "{context}{input}{input}"}) {
    const Json table = {{"d", {{"prompt", text}, {"metric", "f1"}}}};
    EXPECT_THAT(ParsePromptTable(table.dump(), "p.json").status().message(), HasSubstr("p.json: d: \"prompt\""))
        << text;
  }
  const Json table = {{"d", {{"prompt", "{context}"}, {"metric", "f1"}, {"max_new_tokens", 0}}}};
  EXPECT_THAT(ParsePromptTable(table.dump(), "p.json").status().message(), HasSubstr("max_new_tokens"));
}

TEST(BuiltInPrompts, HaveADefault) {
  EXPECT_TRUE(BuiltInPrompts().contains("default"));
  EXPECT_EQ(BuiltInPrompts().at("trec").metric, "class");
}

TEST(ParseChoices, AnswersByNumberOrText) {
  const auto cases = ParseChoices(
      "{\"question\": \"Q\", \"options\": [\"a\", \"b\"], \"answer\": 1}\n"
      "{\"question\": \"Q\", \"options\": [\"a\", \"b\"], \"answer\": \"a\"}",
      "c.jsonl");
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  EXPECT_EQ((*cases)[0].answer_idx, 1U);
  EXPECT_EQ((*cases)[1].answer_idx, 0U);
}

TEST(ParseChoices, ErrorsNameTheLine) {
  const auto message = [](const char* text) { return std::string(ParseChoices(text, "c.jsonl").status().message()); };
  EXPECT_THAT(message("{\"question\": \"\", \"options\": [\"a\", \"b\"], \"answer\": 0}"), HasSubstr("is empty"));
  EXPECT_THAT(message("{\"question\": \"Q\", \"options\": [\"a\"], \"answer\": 0}"), HasSubstr("two texts or more"));
  EXPECT_THAT(message("{\"question\": \"Q\", \"options\": [\"a\", \"b\"], \"answer\": 2}"), HasSubstr("0 to 1"));
  EXPECT_THAT(message("{\"question\": \"Q\", \"options\": [\"a\", \"b\"], \"answer\": -1}"), HasSubstr("0 to 1"));
  EXPECT_THAT(message("{\"question\": \"Q\", \"options\": [\"a\", \"b\"], \"answer\": \"c\"}"), HasSubstr("c.jsonl:1"));
}

}  // namespace
}  // namespace headwise
