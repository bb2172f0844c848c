#include "base/base64.h"

#include <gtest/gtest.h>

namespace headwise {
namespace {

TEST(Base64, DecodesWhatRfc4648Lists) {
  EXPECT_EQ(DecodeBase64(""), "");
  EXPECT_EQ(DecodeBase64("Zg=="), "f");
  EXPECT_EQ(DecodeBase64("Zm8="), "fo");
  EXPECT_EQ(DecodeBase64("Zm9v"), "foo");
  EXPECT_EQ(DecodeBase64("Zm9vYg=="), "foob");
  EXPECT_EQ(DecodeBase64("+/+/"), "\xFB\xFF\xBF");
}

TEST(Base64, WhatNoEncoderWritesIsNothing) {
  for (const char* bad :
       {"Z", "Zg", "Zg=", "Zm9", "=", "====", "Z===", "Zh==", "Zm9=", "Zg==Zg==", "Zm 9", "Zm9-", "\xC3\xA9=="}) {
    EXPECT_EQ(DecodeBase64(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace headwise
