// Every code of a page has a place of its own, and a lane's 16 bytes are what kernels take them for.
#include "backend/cuda/kv_codes.h"

#include <gtest/gtest.h>

#include <set>

namespace headwise::cuda {
namespace {

struct Shape {
  int dim, page_tokens;
};
constexpr Shape kShapes[] = {{64, 32},  {64, 64}, {128, 32}, {128, 64}, {256, 32},
                             {256, 64}, {80, 32}, {33, 16},  {128, 16}};

TEST(KvCodes, EveryCodeHasAPlaceOfItsOwn) {
  for (const Shape& shape : kShapes) {
    const int num_codes = 2 * shape.page_tokens * shape.dim;
    std::set<int> bytes, nibbles;
    for (int row = 0; row < 2 * shape.page_tokens; ++row) {
      for (int d = 0; d < shape.dim; ++d) {
        bytes.insert(Q8Byte(shape.dim, shape.page_tokens, row, d));
        nibbles.insert(Q4Nibble(shape.dim, shape.page_tokens, row, d));
      }
    }
    for (const std::set<int>& places : {bytes, nibbles}) {
      EXPECT_EQ(places.size(), static_cast<size_t>(num_codes)) << shape.dim << " " << shape.page_tokens;
      EXPECT_EQ(*places.begin(), 0);
      EXPECT_EQ(*places.rbegin(), num_codes - 1);
    }
  }
}

// As decode_quantised.cu reads them.
TEST(KvCodes, LanesFindTheirOperands) {
  constexpr int kDim = 128;
  constexpr int kTokens = 64;
  for (int lane = 0; lane < 32; ++lane) {
    const int r = lane / 4;
    const int c = lane % 4;
    for (int token = r; token < kTokens; token += 8) {
      for (int step = 0; step < kDim / 32; ++step) {
        const int at = token / 16 * 16 * kDim + step * 512 + lane * 16 + token % 16 / 8 * 4;
        for (int i = 0; i < 8; ++i) {
          EXPECT_EQ(at + i / 4 * 8 + i % 4, Q8Byte(kDim, kTokens, token, step * 32 + c * 8 + i));
        }
      }
      for (int i = 0; i < 32; ++i) {
        const int nibble = token * kDim + c * 32 + i / 8 * 8 + i % 8 / 2 + i % 2 * 4;
        EXPECT_EQ(nibble, Q4Nibble(kDim, kTokens, token, i / 8 * 32 + c * 8 + i % 8));
      }
    }
    for (int half = 0; half < kTokens / 32; ++half) {
      const int values = kTokens + half * 32;  // the row
      for (int tile = 0; tile < kDim / 16; ++tile) {
        const int at = kTokens * kDim + half * 32 * kDim + tile * 512 + lane * 16;
        for (int word = 0; word < 4; ++word) {
          const int d = tile * 16 + r + word % 2 * 8;
          constexpr int kTokenOf[] = {0, 16, 1, 17};
          for (int i = 0; i < 4; ++i) {
            EXPECT_EQ(at + word * 4 + i, Q8Byte(kDim, kTokens, values + 2 * c + word / 2 * 8 + kTokenOf[i], d));
          }
        }
      }
      for (int group = 0; group < kDim / 32; ++group) {
        const int at = kTokens * kDim + half * 32 * kDim + group * 1024 + lane * 32;
        for (int word = 0; word < 4; ++word) {
          for (int nibble = 0; nibble < 8; ++nibble) {
            const int token = nibble % 4 / 2 * 16 + nibble % 2 * 8 + 2 * c + nibble / 4;
            EXPECT_EQ(at + word * 8 + nibble, Q4Nibble(kDim, kTokens, values + token, group * 32 + r + word * 8));
          }
        }
      }
    }
  }
}

// A lane's words of a q4 key, 16 bytes at a time, or 8 where a quarter has no more.
TEST(KvCodes, LanesFindTheirWordsOfKeys) {
  constexpr int kTokens = 64;
  for (const int dim : {64, 128, 256}) {
    const int of_chunk = dim == 64 ? 2 : 4;
    for (int token = 0; token < kTokens; ++token) {
      const int turned = dim == 256 && token % 2 == 1 ? 4 : 0;
      for (int quarter = 0; quarter < 4; ++quarter) {
        for (int word = 0; word < dim / 32; ++word) {
          const int chunk = (word / of_chunk * 4 + quarter) ^ turned;
          const int first = token * dim + chunk * of_chunk * 8 + word % of_chunk * 8;
          for (int i = 0; i < 8; ++i) {
            EXPECT_EQ(Q4Nibble(dim, kTokens, token, word * 32 + quarter * 8 + i), first + i / 2 + i % 2 * 4)
                << dim << " " << token;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headwise::cuda
