#include "base/sha256.h"

#include <gtest/gtest.h>

namespace headwise {
namespace {

// Test vectors of FIPS 180-2.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, PiecesAddUp) {
  Sha256 hash;
  hash.Update("a");
  hash.Update("bc");
  EXPECT_EQ(hash.Hex(), Sha256Hex("abc"));
}

}  // namespace
}  // namespace headwise
