#include "loadgen/completion_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> EventsOf(const std::vector<std::string>& parts) {
  SseReader reader;
  std::vector<std::string> events;
  for (const std::string& part : parts) {
    const Status status = reader.Feed(part, [&](std::string_view data) {
      events.emplace_back(data);
      return true;
    });
    EXPECT_TRUE(status.ok());
  }
  return events;
}

TEST(SseReader, ReadsEventsHoweverTheyAreCut) {
  const std::string text =
      ": hello\n\ndata: one\n\nevent: x\ndata:two\r\nid: 3\r\n\r\n\r\ndata:  three\rdata\rdata: four\r\rdatum: "
      "none\n\ndata: lost";
  const auto expected = ElementsAre("one", "two", " three\n\nfour");
  EXPECT_THAT(EventsOf({text}), expected);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_THAT(EventsOf({text.substr(0, cut), text.substr(cut)}), expected) << cut;
  }
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  EXPECT_THAT(EventsOf(bytes), expected);
}

TEST(SseReader, JoinsLinesOfOneEvent) {
  const auto expected = ElementsAre("a\nb", "c");
  for (const std::string end : {"\n", "\r", "\r\n"}) {
    const std::string text = "data: a" + end + "data: b" + end + end + "data: c" + end + end;
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      EXPECT_THAT(EventsOf({text.substr(0, cut), text.substr(cut)}), expected) << cut;
    }
  }
}

TEST(SseReader, RefusesEventsWithoutEnd) {
  SseReader reader;
  const std::string block(1 << 20, 'x');
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = reader.Feed(block, [](std::string_view) { return true; });
  EXPECT_THAT(status.message(), HasSubstr("an event of more than"));
}

std::string Piece(const std::string& text) {
  return R"(data: {"choices":[{"index":0,"text":")" + text + R"(","finish_reason":null}]})" + "\n\n";
}

constexpr const char* kEnd = "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n";

TEST(CompletionStream, NotesWhenPiecesCame) {
  CompletionStream stream;
  EXPECT_TRUE(stream.Feed(Piece("a"), 1));
  EXPECT_TRUE(stream.Feed(Piece("b").substr(0, 9), 2));
  EXPECT_TRUE(stream.Feed(Piece("b").substr(9) + Piece("c"), 3));
  EXPECT_TRUE(stream.Feed(Piece(""), 4));  // says nothing
  EXPECT_TRUE(stream.Feed(kEnd, 5));
  EXPECT_TRUE(stream.is_finished());
  EXPECT_TRUE(
      stream.Feed("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":4,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n",
                  6));
  EXPECT_FALSE(stream.is_done());
  EXPECT_FALSE(stream.Feed("data: [DONE]\n\n" + Piece("late"), 7));
  EXPECT_TRUE(stream.is_done());
  EXPECT_FALSE(stream.Feed(Piece("later"), 8));
  EXPECT_THAT(stream.piece_times(), ElementsAre(1, 3, 3));
  ASSERT_TRUE(stream.usage());
  EXPECT_EQ(stream.usage()->prompt_tokens, 7);
  EXPECT_EQ(stream.usage()->completion_tokens, 4);
  EXPECT_EQ(stream.usage()->cached_tokens, 2);
  EXPECT_FALSE(stream.failure());
}

// llama.cpp puts usage into its last piece; others have "usage": null in every one.
TEST(CompletionStream, TakesUsageWhereverItStands) {
  CompletionStream stream;
  stream.Feed(
      "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,"
      "\"completion_tokens\":2}}\n\ndata: {\"choices\":[],\"usage\":null}\n\n",
      1);
  ASSERT_TRUE(stream.usage());
  EXPECT_EQ(stream.usage()->completion_tokens, 2);
  EXPECT_TRUE(stream.is_finished());
  EXPECT_FALSE(stream.is_done());
}

TEST(CompletionStream, CountsTokensWithoutTextOnceAtTheirEnd) {
  CompletionStream stream;
  stream.Feed(Piece("") + kEnd, 3);
  EXPECT_THAT(stream.piece_times(), ElementsAre(3));
}

TEST(CompletionStream, SaysWhatWentWrong) {
  const auto failure = [](const std::string& bytes) {
    CompletionStream stream;
    EXPECT_FALSE(stream.Feed(bytes, 1)) << bytes;
    return stream.failure().value_or(StreamFailure{});
  };
  EXPECT_EQ(failure("data: {\"choi\n\n").kind, "protocol");
  EXPECT_THAT(failure("data: [1]\n\n").message, HasSubstr("[1]"));
  EXPECT_EQ(failure("data: \xff\n\n").kind, "protocol");
  EXPECT_EQ(failure("data: {\"error\":{\"message\":\"no memory\"}}\n\n").kind, "stream_error");
  EXPECT_EQ(failure("data: {\"error\":{\"message\":\"no memory\"}}\n\n").message, "no memory");
  EXPECT_EQ(failure("data: {\"error\":\"plain\"}\n\n").message, "plain");
}

TEST(CompletionStream, BearsPiecesOfAnyShape) {
  for (const char* data : {"{}", "{\"choices\":1}", "{\"choices\":[3]}", "{\"choices\":[{\"text\":3}]}",
                           "{\"choices\":[{}]}", "{\"usage\":4}", "{\"usage\":{\"completion_tokens\":-3}}",
                           "{\"usage\":{\"completion_tokens\":1e300}}", "{\"error\":null}"}) {
    CompletionStream stream;
    EXPECT_TRUE(stream.Feed(std::string("data: ") + data + "\n\n", 1)) << data;
    EXPECT_THAT(stream.piece_times(), IsEmpty()) << data;
    EXPECT_EQ(stream.usage().value_or(StreamUsage{}).completion_tokens, 0) << data;
  }
}

TEST(ErrorMessageOf, FindsTheSentence) {
  EXPECT_EQ(ErrorMessageOf(R"({"error": {"message": "too long", "code": 3}})"), "too long");
  EXPECT_EQ(ErrorMessageOf(R"({"message": "vLLM's"})"), "vLLM's");
  EXPECT_EQ(ErrorMessageOf(R"({"detail": "FastAPI's"})"), "FastAPI's");
  EXPECT_EQ(ErrorMessageOf("Bad Gateway"), "Bad Gateway");
  EXPECT_EQ(ErrorMessageOf(""), "");
  EXPECT_EQ(ErrorMessageOf(std::string(1000, 'x')).size(), 203u);
}

}  // namespace
}  // namespace headwise
