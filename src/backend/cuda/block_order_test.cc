// Block formats in the device's order, looked at on the host: every number is there once, and stands for what it stands
// for in the file.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "backend/cuda/block_operands.h"
#include "backend/cuda/block_order.h"
#include "backend/cuda/pack_blocks.h"
#include "support/random_blocks.h"
#include "tensor/block_reader.h"
#include "tensor/blocks.h"

namespace headwise::cuda {
namespace {

class BlocksInOrder : public testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  BlockOrder order() const { return OrderOf(dtype()); }
};

// Neither K nor N are whole slices and tiles.
TEST_P(BlocksInOrder, StandForWhatTheyStandForInTheFile) {
  std::mt19937 rng(1);
  const int64_t block = BlockElements(dtype());
  for (const auto& [num_outputs, depth] : {std::pair<int64_t, int64_t>{21, 3 * block}, {16, 1024}, {1, 5 * block}}) {
    const Shape shape{num_outputs, depth};
    const std::vector<std::byte> bytes = RandomBlocks(dtype(), shape, rng);
    const ConstTensorView rows(bytes.data(), dtype(), shape);
    std::vector<float> expected(static_cast<size_t>(shape.num_elements()));
    ToF32(dtype(), bytes.data(), shape.num_elements(), expected.data());
    const int64_t tile_bytes = order().TileBytes(depth);
    // Filled: what is not there must be zeros.
    std::vector<std::byte> tile(static_cast<size_t>(tile_bytes), std::byte{0xA5});
    for (int64_t output = 0; output < (num_outputs + 15) / 16 * 16; ++output) {
      if (output % kOrderOutputs == 0) PackTile(rows, output / kOrderOutputs, tile.data());
      for (int64_t k = 0; k < order().NumSlices(depth) * order().slice_elements(); ++k) {
        const auto* slice =
            reinterpret_cast<const uint8_t*>(tile.data()) + k / order().slice_elements() * order().slice_bytes();
        const BlockTerms terms = TermsOf(order(), slice, static_cast<int>(output % kOrderOutputs),
                                         static_cast<int>(k % order().slice_elements()));
        const float found = terms.Value(order().has_min, order().has_powers ? BF16ToF32(terms.d) : F16ToF32(terms.d),
                                        F16ToF32(terms.min));
        const bool is_there = output < num_outputs && k < depth;
        ASSERT_EQ(found, is_there ? expected[static_cast<size_t>(output * depth + k)] : 0.0f)
            << NameOf(dtype()) << " output " << output << " element " << k << " of " << shape.ToString();
      }
    }
  }
}

TEST_P(BlocksInOrder, PlacesDoNotOverlapAndFillTheSlice) {
  std::set<int> bits;
  int bits_of_codes = 0;
  const auto take = [&](int byte, int shift, int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(bits.insert(byte * 8 + shift + i).second) << NameOf(dtype()) << " byte " << byte;
    }
    bits_of_codes += count;
  };
  for (int output = 0; output < kOrderOutputs; ++output) {
    for (int k = 0; k < order().slice_elements(); ++k) {
      const CodePlace place = PlaceOfCode(order(), output, k / kRunElements, k % kRunElements);
      take(place.low, place.low_shift, order().bits == 8 ? 8 : 4);
      if (order().high_bytes() > 0) take(place.high, place.high_shift, order().bits - 4);
    }
  }
  EXPECT_EQ(bits_of_codes, order().scales_at() * 8);
  std::set<int> scales;  // bytes
  for (int output = 0; output < kOrderOutputs; ++output) {
    for (int run = 0; run < order().runs; ++run) {
      for (int half = 0; half < (order().has_half_runs ? 2 : 1); ++half) {
        const ScalePlace place = PlaceOfScales(order(), output, run, half);
        scales.insert({place.d, place.d + 1});
        if (order().has_min) scales.insert({place.min, place.min + 1});
        if (order().has_super) scales.insert(place.scale);
        if (order().has_super && order().has_min) scales.insert(place.min_scale);
      }
    }
  }
  EXPECT_EQ(static_cast<int>(scales.size()), order().slice_bytes() - order().scales_at());
  EXPECT_EQ(*scales.begin(), order().scales_at());
  EXPECT_EQ(*scales.rbegin(), order().slice_bytes() - 1);
}

// The words of a lane at `at` of the slice.
uint32_t WordAt(const std::vector<std::byte>& slice, int at) {
  uint32_t word = 0;
  std::memcpy(&word, slice.data() + at, sizeof(word));
  return word;
}

// As the kernel reads them: four registers of a lane, byte i of register j what block_order.h says.
template <DType kType>
void ExpectOperands() {
  constexpr BlockOrder kOrder = OrderOf(kType);
  std::mt19937 rng(3);
  const Shape shape{kOrderOutputs, kOrder.slice_elements()};
  const std::vector<std::byte> bytes = RandomBlocks(kType, shape, rng);
  std::vector<std::byte> slice(static_cast<size_t>(kOrder.slice_bytes()));
  PackTile(ConstTensorView(bytes.data(), kType, shape), 0, slice.data());
  for (int run = 0; run < kOrder.runs; ++run) {
    for (int lane = 0; lane < 32; ++lane) {
      constexpr int kWords = LowWords(kOrder);
      uint32_t low[kWords];
      const int chunk = kWords == 4 ? run : run / 2;
      for (int i = 0; i < kWords; ++i) {
        low[i] = WordAt(slice, (chunk * 32 + lane) * 16 + (run * kWords + i) % 4 * 4);
      }
      uint32_t high = 0;
      if (kOrder.bits == 5) high = WordAt(slice, kOrder.high_at() + lane * 16 + run / 2 * 4);
      if (kOrder.bits == 6) high = WordAt(slice, kOrder.high_at() + (run / 4 * 32 + lane) * 16 + run % 4 * 4);
      uint32_t a[4];
      OperandsOf<kType>(low, high, run, a);
      for (int i = 0; i < 16; ++i) {
        const int output = lane / 4 + i / 4 % 2 * 8;
        const int element = i / 8 * 16 + i % 2 * 8 + lane % 4 * 2 + i % 4 / 2;
        const int level =
            TermsOf(kOrder, reinterpret_cast<const uint8_t*>(slice.data()), output, run * kRunElements + element).level;
        const auto byte = static_cast<uint8_t>(a[i / 4] >> (i % 4 * 8));
        const int found = HasSignedOperands(kOrder) ? static_cast<int8_t>(byte) : byte;
        ASSERT_EQ(static_cast<float>(found) * OperandFactor(kOrder), static_cast<float>(level))
            << NameOf(kType) << " run " << run << " lane " << lane << " byte " << i;
      }
    }
  }
}

TEST(BlockOperands, AreTheLevelsOfTheirElements) {
  ExpectOperands<DType::kQ8_0>();
  ExpectOperands<DType::kQ4_0>();
  ExpectOperands<DType::kQ4_1>();
  ExpectOperands<DType::kQ5_0>();
  ExpectOperands<DType::kQ5_1>();
  ExpectOperands<DType::kQ4_K>();
  ExpectOperands<DType::kQ5_K>();
  ExpectOperands<DType::kQ6_K>();
  ExpectOperands<DType::kIQ4_NL>();
  ExpectOperands<DType::kMXFP4>();
}

// What bulk loads of 16 bytes and reads of whole sectors need.
TEST_P(BlocksInOrder, SlicesAreWholeSectors) {
  EXPECT_EQ(order().slice_bytes() % 32, 0);
  EXPECT_EQ(order().high_at() % 16, 0);
  EXPECT_EQ(order().scales_at() % 16, 0);
  const Shape shape{32, 4096};
  const auto in_file = static_cast<double>(BytesOf(dtype(), shape.num_elements()));
  const auto ordered = static_cast<double>(OrderedBytes(dtype(), shape[0], shape[1]));
  EXPECT_LE(ordered, in_file * (order().has_powers ? 1.06 : order().has_super && order().has_min ? 1.03 : 1.0));
}

TEST(BlockOrder, LevelsAreTheFormats) {
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(LevelOf(OrderOf(DType::kIQ4_NL), code), kIQ4Levels[code]);
    EXPECT_EQ(LevelOf(OrderOf(DType::kMXFP4), code), kMXFP4Levels[code]);
  }
}

INSTANTIATE_TEST_SUITE_P(, BlocksInOrder, testing::ValuesIn(BlockFormatsOf("cuda")),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

}  // namespace
}  // namespace headwise::cuda
