#include "data/stream_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <utility>

#include "base/sha256.h"
#include "data/lines.h"

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Line {
  std::string name;
  int64_t number = 0;
};

// A stream read back from its text.
struct ReadStream {
  std::vector<Line> lines;
  std::vector<int64_t> asked_at;  // how many lines stood before each question
};

// Adds a block, and expects its question to be for the line `distance` lines back.
void ReadBlock(const LineBlock& block, ReadStream& stream) {
  const std::regex line("line ([a-z]+-[a-z]+): REGISTER_CONTENT is <([0-9]+)>\n");
  int64_t num_lines = 0;
  for (auto it = std::sregex_iterator(block.text.begin(), block.text.end(), line); it != std::sregex_iterator(); ++it) {
    stream.lines.push_back({.name = (*it)[1], .number = std::stoll((*it)[2])});
    ++num_lines;
  }
  EXPECT_EQ(num_lines, block.num_lines);
  const auto total = static_cast<int64_t>(stream.lines.size());
  stream.asked_at.push_back(total);
  ASSERT_GE(total, block.distance);
  const Line& asked = stream.lines[static_cast<size_t>(total - block.distance)];
  EXPECT_EQ(block.question, "\nTell me what is the <REGISTER_CONTENT> in line " + asked.name + "? I need the number. ");
  EXPECT_EQ(block.expected_number, asked.number);
}

TEST(LineStream, AsksForTheLineThatFarBack) {
  LineStream stream({}, 1);
  ReadStream read;
  for (int i = 0; i < 50; ++i) {
    const LineBlock block = stream.Next();
    EXPECT_EQ(block.distance, 20);
    EXPECT_EQ(block.num_lines, i == 0 ? 20 : 10);
    EXPECT_EQ(block.text.starts_with("Below is a record of lines"), i == 0);
    EXPECT_TRUE(i == 0 || block.text.starts_with("\n\nline "));
    EXPECT_TRUE(block.text.ends_with(">\n"));
    ReadBlock(block, read);
  }
}

TEST(LineStream, CyclesThroughDistances) {
  LineStream stream({.lines_between = 10, .distances = {5, 43, 206, 1}}, 2);
  ReadStream read;
  const int64_t distances[] = {5, 43, 206, 1};
  for (size_t i = 0; i < 12; ++i) {
    const LineBlock block = stream.Next();
    EXPECT_EQ(block.distance, distances[i % 4]);
    ReadBlock(block, read);
  }
  // Line 0 is 43 back after 43 lines; 206 back of line 206, too, but it has been asked for.
  EXPECT_THAT(read.asked_at, ElementsAre(10, 43, 207, 217, 227, 237, 247, 257, 267, 277, 287, 297));
}

TEST(LineStream, AsksForNoLineTwice) {
  for (const int64_t lines_between : {1, 2, 10}) {
    LineStream stream({.lines_between = lines_between, .distances = {20, 30, 40, 10, 1000}}, 3);
    ReadStream read;
    std::set<int64_t> asked;
    for (int i = 0; i < 300; ++i) {
      const LineBlock block = stream.Next();
      ReadBlock(block, read);
      EXPECT_TRUE(asked.insert(read.asked_at.back() - block.distance).second);
      EXPECT_TRUE(i < 5 || block.num_lines <= lines_between + 4) << block.num_lines;
    }
  }
}

TEST(LineStream, OneLineAtATime) {
  LineStream stream({.lines_between = 1, .distances = {1}}, 3);
  ReadStream read;
  for (int i = 0; i < 5; ++i) ReadBlock(stream.Next(), read);
  EXPECT_EQ(read.lines.size(), 5U);
}

TEST(LineStream, NothingTwiceWithinTheWindow) {
  LineStream stream({.lines_between = 100, .distances = {1900}}, 4);
  ReadStream read;
  for (int i = 0; i < 150; ++i) ReadBlock(stream.Next(), read);
  std::multiset<std::string> names;
  std::multiset<int64_t> numbers;
  std::set<std::string> all_names;
  for (size_t i = 0; i < read.lines.size(); ++i) {
    if (i >= 2000) {
      names.erase(names.find(read.lines[i - 2000].name));
      numbers.erase(numbers.find(read.lines[i - 2000].number));
    }
    const Line& line = read.lines[i];
    ASSERT_FALSE(names.contains(line.name)) << i;
    ASSERT_FALSE(numbers.contains(line.number)) << i;
    ASSERT_GE(line.number, 1);
    ASSERT_LE(line.number, kMaxLineNumber);
    names.insert(line.name);
    numbers.insert(line.number);
    all_names.insert(line.name);
  }
  EXPECT_GT(all_names.size(), 7000U);  // later lines have other names, and after enough of them the same again
  EXPECT_LT(all_names.size(), read.lines.size());
}

TEST(LineStream, LongestDistance) {
  LineStream stream({.distances = {9800}}, 5);
  ReadStream read;
  for (int i = 0; i < 20; ++i) ReadBlock(stream.Next(), read);
  EXPECT_EQ(read.lines.size(), 9990U);
}

TEST(LineStream, SeedFixesIt) {
  const auto text = [](uint64_t seed) {
    LineStream stream({}, seed);
    std::string all;
    for (int i = 0; i < 3; ++i) {
      const LineBlock block = stream.Next();
      all += block.text + block.question;
    }
    return all;
  };
  EXPECT_EQ(text(4), text(4));
  EXPECT_NE(text(4), text(5));
  EXPECT_EQ(Sha256Hex(text(4)), "e1e64be6379c121f2f022d81594995de067ca562a4b3043235a25e89d1b2a813");
}

TEST(ValidateLineStreamOptions, NamesWhatIsOutOfRange) {
  const auto message = [](const LineStreamOptions& options) { return ValidateLineStreamOptions(options).message(); };
  EXPECT_TRUE(ValidateLineStreamOptions({}).ok());
  EXPECT_THAT(message({.lines_between = 0}), HasSubstr("lines between questions is 0, expected 1 to 100000"));
  EXPECT_THAT(message({.distances = {}}), HasSubstr("no distances, expected one or more"));
  EXPECT_THAT(message({.distances = {20, 0}}), HasSubstr("distance in lines is 0, expected 1 to 9800"));
  EXPECT_THAT(message({.distances = {9801}}), HasSubstr("distance in lines is 9801"));
}

}  // namespace
}  // namespace headwise
