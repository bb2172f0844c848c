#include "text/jinja/marked_string.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headwise::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Origin kT = Origin::kTemplate;
constexpr Origin kC = Origin::kContext;

std::vector<ByteRange> RangesOf(const MarkedString& text) {
  MarkedBuffer buffer;
  buffer.Append(text);
  return buffer.ContextRanges();
}

TEST(MarkedString, RunsOfOneOriginAreOne) {
  MarkedBuffer buffer;
  buffer.Append("ab", kT);
  buffer.Append("", kC);
  buffer.Append("c", kT);
  EXPECT_THAT(buffer.ContextRanges(), IsEmpty());
  EXPECT_EQ(buffer.num_bytes(), 3u);
  buffer.Append("de", kC);
  buffer.Append("f", kC);
  buffer.Append("g", kT);
  EXPECT_THAT(buffer.ContextRanges(), ElementsAre(ByteRange{3, 6}));
  EXPECT_EQ(buffer.OriginAt(2), kT);
  EXPECT_EQ(buffer.OriginAt(3), kC);
  EXPECT_EQ(buffer.OriginAt(6), kT);
}

TEST(MarkedString, PartsKeepTheirOrigins) {
  const MarkedString text = MarkedString("ab", kT).Concat(MarkedString("cd", kC)).Concat(MarkedString("ef", kT));
  EXPECT_EQ(text.view(), "abcdef");
  EXPECT_THAT(RangesOf(text), ElementsAre(ByteRange{2, 4}));
  EXPECT_THAT(RangesOf(text.Substr(3, 6)), ElementsAre(ByteRange{0, 1}));
  EXPECT_EQ(text.Substr(2, 4).AnyOrigin(), kC);
  EXPECT_EQ(text.Substr(0, 2).AnyOrigin(), kT);
  EXPECT_EQ(text.Substr(4, 6).AnyOrigin(), kT);
  EXPECT_EQ(text.Substr(4, 4).AnyOrigin(), kT);
  EXPECT_EQ(text.Part(text.view().substr(1, 2)).view(), "bc");
}

// Only the longest string of a buffer may go on in it.
TEST(MarkedString, AppendingSharesAndNeverOverwrites) {
  const MarkedString a = MarkedString("a", kT).Concat(MarkedString("b", kC));
  EXPECT_EQ(a.ConcatCost(MarkedString("x", kT)), 1u);
  const MarkedString x = a.Concat(MarkedString("x", kT));
  EXPECT_EQ(a.ConcatCost(MarkedString("y", kT)), 3u);
  const MarkedString y = a.Concat(MarkedString("y", kC));
  const MarkedString self = x.Concat(x);
  EXPECT_EQ(a.view(), "ab");
  EXPECT_EQ(x.view(), "abx");
  EXPECT_EQ(y.view(), "aby");
  EXPECT_EQ(self.view(), "abxabx");
  EXPECT_THAT(RangesOf(y), ElementsAre(ByteRange{1, 3}));
  EXPECT_THAT(RangesOf(self), ElementsAre(ByteRange{1, 2}, ByteRange{4, 5}));
  // What was handed in is never written to: others may be reading it.
  const MarkedString given("given", kC);
  EXPECT_EQ(given.ConcatCost(MarkedString("x", kT)), 6u);
}

TEST(MarkedString, EmptyOnes) {
  const MarkedString empty;
  EXPECT_EQ(empty.view(), "");
  EXPECT_EQ(empty.Concat(empty).view(), "");
  EXPECT_EQ(empty.Concat(MarkedString("a", kC)).view(), "a");
  EXPECT_EQ(MarkedString("", kC).AnyOrigin(), kT);
}

}  // namespace
}  // namespace headwise::jinja
