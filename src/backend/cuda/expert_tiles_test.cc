// How products with experts are cut: functions of host and device, looked at on the host.
#include "backend/cuda/expert_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace headwise::cuda {
namespace {

// Every matrix's every output of a tile is one row of weights; 16 of them side by side are one tile of a block order.
TEST(ExpertTiles, RowsOfWeightsAreOutputsOnce) {
  for (const bool is_gated : {false, true}) {
    std::set<std::pair<bool, int>> seen;
    for (int row = 0; row < kTileWeightRows; ++row) {
      const int output = TileOutputOf(is_gated, row);
      EXPECT_LT(output, TileOutputs(is_gated));
      EXPECT_TRUE(seen.insert({is_gated && IsUpRow(row), output}).second) << row;
      EXPECT_EQ(output % kTileGroup, row % kTileGroup);
      // What gates it is in the same place, 16 rows before.
      EXPECT_EQ(output, TileOutputOf(is_gated, is_gated && IsUpRow(row) ? row - kTileGroup : row));
    }
  }
}

// A matrix load reads the same 16 bytes of eight rows: they must lie in different banks.
TEST(ExpertTiles, ChunksOfEightRowsAreInDifferentBanks) {
  std::set<int> all;
  for (int row = 0; row < kTileWeightRows; ++row) {
    for (int chunk = 0; chunk < kTileChunks; ++chunk) {
      EXPECT_TRUE(all.insert(TileChunkAt(row, chunk)).second);
      EXPECT_LT(TileChunkAt(row, chunk), kTileWeightRows * kTileDepth * 2);
    }
  }
  for (int first = 0; first < kTileWeightRows; first += 8) {
    for (int chunk = 0; chunk < kTileChunks; ++chunk) {
      std::set<int> banks;
      for (int row = first; row < first + 8; ++row) banks.insert(TileChunkAt(row, chunk) % 128);
      EXPECT_EQ(banks.size(), 8u);
    }
  }
}

// Experts' counts, of T rows that go through k of X experts.
std::vector<int> RandomCounts(std::mt19937& rng, int& num_slots) {
  const int num_experts = 1 + static_cast<int>(rng() % 140);
  const int num_rows = 1 + static_cast<int>(rng() % 300);
  const int num_chosen = 1 + static_cast<int>(rng() % std::min(num_experts, 9));
  std::vector<int> counts(static_cast<size_t>(num_experts));
  for (int row = 0; row < num_rows; ++row) {
    std::set<int> chosen;
    while (static_cast<int>(chosen.size()) < num_chosen) {
      chosen.insert(rng() % 2 == 0 ? static_cast<int>(rng() % num_experts) : static_cast<int>(chosen.size()));
    }
    for (const int expert : chosen) ++counts[static_cast<size_t>(expert)];
  }
  num_slots = num_rows * num_chosen;
  return counts;
}

TEST(ExpertTiles, OfRowsCoverEachSlotOnceAndAreNotMoreThanSaid) {
  std::mt19937 rng(1);
  for (int i = 0; i < 300; ++i) {
    int num_slots = 0;
    const std::vector<int> counts = RandomCounts(rng, num_slots);
    for (const int block_rows : {32, 64, 128}) {
      int first = 0;
      int next = 0;
      int64_t num_tiles = 0;
      for (const int count : counts) {
        for (int tile = 0; tile < NumRowTiles(count, block_rows); ++tile, ++num_tiles) {
          const ExpertTileRows rows = RowsOfTile(first, count, block_rows, tile);
          ASSERT_EQ(rows.first, next);
          ASSERT_TRUE(rows.count > 0 && rows.count <= block_rows);
          next += rows.count;
        }
        first += count;
        ASSERT_EQ(next, first);
      }
      ASSERT_LE(num_tiles, MostRowTiles(num_slots, static_cast<int64_t>(counts.size()), block_rows));
    }
  }
}

TEST(ExpertTiles, ColumnsOfExpertsBeginAtEvenOnesAndDoNotOverlap) {
  std::mt19937 rng(2);
  for (int i = 0; i < 300; ++i) {
    int num_slots = 0;
    const std::vector<int> counts = RandomCounts(rng, num_slots);
    int first = 0;
    int place = 0;
    int end = 0;
    for (const int count : counts) {
      if (count == 0) continue;
      const int column = FirstColumn(first, place++);
      ASSERT_EQ(column % 2, 0);
      ASSERT_GE(column, end);
      end = column + count;
      first += count;
    }
    ASSERT_LE(end, MostColumns(num_slots));
  }
}

}  // namespace
}  // namespace headwise::cuda
