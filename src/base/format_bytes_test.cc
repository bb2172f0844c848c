#include "base/format_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace headwise {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ParseBytes, UnitsOfTenAndOfTwo) {
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("1500000"), 1'500'000);
  EXPECT_EQ(*ParseBytes("7B"), 7);
  EXPECT_EQ(*ParseBytes("2K"), 2'000);
  EXPECT_EQ(*ParseBytes("2kB"), 2'000);
  EXPECT_EQ(*ParseBytes("2KiB"), 2'048);
  EXPECT_EQ(*ParseBytes("1.5M"), 1'500'000);
  EXPECT_EQ(*ParseBytes("0.5Mi"), 512 * 1024);
  EXPECT_EQ(*ParseBytes("1g"), 1'000'000'000);
  EXPECT_EQ(*ParseBytes("1 GiB"), int64_t{1} << 30);
  EXPECT_EQ(*ParseBytes("3tb"), 3'000'000'000'000);
  // As FormatBytes shows them.
  EXPECT_EQ(*ParseBytes(FormatBytes(67'100'000)), 67'100'000);
  EXPECT_EQ(*ParseBytes("9223372036854775807"), std::numeric_limits<int64_t>::max());
}

TEST(ParseBytes, AnythingElseIsNamed) {
  for (const char* text : {"",
                           " ",
                           "G",
                           "-1",
                           "-1G",
                           "+1",
                           "1X",
                           "1 ",
                           "1G ",
                           "1GG",
                           "1Bi",
                           "1iB",
                           "1.5",
                           "1.5B",
                           "1..5M",
                           "1e9",
                           "0x10",
                           "nan",
                           "inf",
                           ".",
                           ".K",
                           "9223372036854775808",
                           "9223372036854775807K",
                           "99999999999999999999999",
                           "1e400G",
                           "8388608TiB",
                           "9000000000.5T"}) {
    EXPECT_THAT(ParseBytes(text).status().message(),
                AllOf(HasSubstr(std::string("found \"") + text + "\""), HasSubstr("expected"), HasSubstr("MiB")));
  }
}

}  // namespace
}  // namespace headwise
