#include "loadgen/load_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

namespace headwise {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

std::vector<LoadRecord> SomeRecords(int64_t count) {
  std::vector<LoadRecord> records;
  for (int64_t i = 0; i < count; ++i) {
    const auto start = static_cast<double>(i);
    LoadRecord record = {.request = i, .arrival = start, .start = start, .connected = start + 0.001, .end = start + 2};
    record.pieces = {start + 0.25, start + 1.25, start + 2};
    record.prompt_tokens = 10;
    record.output_tokens = 3;
    record.is_counted = true;
    record.status = 200;
    records.push_back(record);
  }
  return records;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(LoadReport, ShowsFiguresAndCharts) {
  std::vector<LoadRecord> records = SomeRecords(8);
  records[3].failure = "reset";
  records[3].message = "a <b> in its message";
  const std::string html = RenderLoadReport({{"base_url", "http://a:1"}, {"model", "<m>"}}, records);
  for (const char* part :
       {"Time to first token", "Between tokens", "Time per output token", "Whole requests", "Requests under way",
        "until the first token", "250.00", "http://a:1", "&lt;m&gt;", "request 3: reset: a &lt;b&gt; in its message"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  EXPECT_THAT(html, Not(HasSubstr("<m>")));
  EXPECT_EQ(Count(html, "<g><title>request "), 8u);
  // Nothing is loaded from elsewhere.
  EXPECT_FALSE(std::regex_search(html, std::regex("<script|src=|href=\"[^#]|@import|url\\(")));
  EXPECT_EQ(Count(html, "nan") + Count(html, "inf\""), 0u);
}

TEST(LoadReport, ThinsManyRowsAndBearsNone) {
  const std::string many = RenderLoadReport(Json::object(), SomeRecords(4000));
  EXPECT_EQ(Count(many, "<g><title>request "), 400u);
  EXPECT_THAT(many, HasSubstr("one in 10"));
  std::vector<LoadRecord> failed = SomeRecords(2);
  for (LoadRecord& record : failed) {
    record.failure = "connect";
    record.pieces.clear();
  }
  EXPECT_THAT(RenderLoadReport(Json::object(), failed), HasSubstr("request 1: connect"));
  EXPECT_THAT(RenderLoadReport(Json::object(), {}), HasSubstr("Distributions"));
}

TEST(LoadFacts, SayWhoCountedTokens) {
  std::vector<LoadRecord> records = SomeRecords(2);
  EXPECT_THAT(LoadFacts(records), Contains(Pair("tokens of answers", "6")));
  records[0].is_counted = false;
  EXPECT_THAT(LoadFacts(records), Contains(Pair(HasSubstr("the server counts no tokens"), "6")));
}

}  // namespace
}  // namespace headwise
