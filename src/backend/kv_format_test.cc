#include "backend/kv_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headwise {
namespace {

using ::testing::HasSubstr;

TEST(KvFormat, NamesGoBothWays) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4}) {
    EXPECT_EQ(KvFormatByName(NameOf(format)).value(), format);
  }
  EXPECT_EQ(NameOf(KvFormatsByName("q4,f16").value()), "q4,f16");
  EXPECT_EQ(NameOf(KvFormatsByName("q4").value()), "q4");
  EXPECT_THAT(KvFormatsByName("f16,q5").status().message(), HasSubstr("\"q5\", expected f32, f16, bf16, q8 or q4"));
}

TEST(KvFormat, OnlyQ4IsWrittenInAnother) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8}) {
    EXPECT_EQ(NewestFormat(format), format);
  }
  EXPECT_EQ(NewestFormat(KvFormat::kQ4), KvFormat::kQ8);
}

TEST(KvFormat, PagesThatAgeAreLarger) {
  EXPECT_EQ(PageTokensFor(0, KvFormat::kQ4).value(), 64);
  EXPECT_EQ(PageTokensFor(0, KvFormat::kQ8).value(), 32);
  EXPECT_EQ(PageTokensFor(0, KvFormat::kF16).value(), 32);
  EXPECT_EQ(PageTokensFor(16, KvFormat::kQ4).value(), 16);
  for (const int64_t asked : {-16, 8, 17, 1040}) {
    EXPECT_THAT(PageTokensFor(asked, KvFormat::kF16).status().message(),
                HasSubstr("expected 0 or a multiple of 16 from 16 to 1024"));
  }
}

TEST(KvFormat, BytesByHand) {
  EXPECT_EQ(TokensBytes(KvFormat::kF32, 64, 32), 2 * 32 * 64 * 4);
  EXPECT_EQ(TokensBytes(KvFormat::kF16, 64, 1), 2 * 64 * 2);
  EXPECT_EQ(TokensBytes(KvFormat::kBF16, 80, 16), 2 * 16 * 80 * 2);
  EXPECT_EQ(TokensBytes(KvFormat::kQ8, 64, 32), 2 * 32 * (64 + 2));
  // Codes of keys and values; scale and low of 64 key dimensions; those of two groups of each value.
  EXPECT_EQ(TokensBytes(KvFormat::kQ4, 64, 32), 2 * 32 * 32 + 64 * 4 + 32 * 2 * 4);
  EXPECT_EQ(TokensBytes(KvFormat::kQ4, 80, 16), 2 * 16 * 40 + 80 * 4 + 16 * 3 * 4) << "the last group has 16";
  EXPECT_EQ(TokensBytes(KvFormat::kQ4, 5, 16), 16 * 5 + 5 * 4 + 16 * 4) << "an odd number of codes in a row";
}

}  // namespace
}  // namespace headwise
