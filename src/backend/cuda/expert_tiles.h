// How products with experts are cut, for host and device. Of many rows: which of a tile's rows of weights belong to
// what, where they lie in shared memory, and which rows of x it has. No std:: code.
#ifndef HEADWISE_BACKEND_CUDA_EXPERT_TILES_H_
#define HEADWISE_BACKEND_CUDA_EXPERT_TILES_H_

#include <cstdint>

namespace headwise::cuda {

inline constexpr int kTileWeightRows = 128;
inline constexpr int kTileDepth = 32;               // numbers of K a turn
inline constexpr int kTileChunks = kTileDepth / 8;  // 16 bytes in bf16
inline constexpr int kTileGroup = 16;               // rows of weights of one matrix side by side

// Where gated 16 rows of the gate are followed by the same 16 of what it gates: a warp's 32 rows are 16 outputs.
constexpr bool IsUpRow(int weight_row) {
  return weight_row / kTileGroup % 2 == 1;
}
constexpr int TileOutputs(bool is_gated) {
  return is_gated ? kTileWeightRows / 2 : kTileWeightRows;
}
// The tile's output that a row of weights is of.
constexpr int TileOutputOf(bool is_gated, int weight_row) {
  return is_gated ? weight_row / (2 * kTileGroup) * kTileGroup + weight_row % kTileGroup : weight_row;
}

// Of a row's 64 bytes the place of 16 of them: eight rows' are in different banks.
constexpr int TileChunkAt(int row, int chunk) {
  return row * kTileDepth * 2 + (chunk ^ (row / 2 % kTileChunks)) * 16;
}

// A part of an expert's rows: places in RoutedRows::slots.
struct ExpertTileRows {
  int first = 0;
  int count = 0;
};
constexpr int NumRowTiles(int count, int block_rows) {
  return (count + block_rows - 1) / block_rows;
}
constexpr ExpertTileRows RowsOfTile(int first, int count, int block_rows, int tile) {
  const int begin = tile * block_rows;
  const int left = count - begin;
  return {first + begin, left < block_rows ? left : block_rows};
}
// Whoever is chosen: of each expert that has slots one tile may be begun and not full.
constexpr int64_t MostRowTiles(int64_t num_slots, int64_t num_experts, int block_rows) {
  return num_slots / block_rows + (num_slots < num_experts ? num_slots : num_experts);
}
// Rows of a block where experts have so many on average: of more a tile's weights serve more rows, of fewer less is
// multiplied for nothing.
constexpr int TileRowsFor(int64_t rows_of_expert) {
  return rows_of_expert <= 16 ? 32 : rows_of_expert <= 96 ? 64 : 128;
}

// Columns of rows that were rounded for few rows' products with block formats: those of the `place`-th expert that was
// chosen, whose slots begin at `first_slot`, begin at an even one behind those of the experts before it.
constexpr int FirstColumn(int first_slot, int place) {
  return (first_slot + place) / 2 * 2;
}
constexpr int MostColumns(int num_slots) {
  return 2 * num_slots;
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_EXPERT_TILES_H_
