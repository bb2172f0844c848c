#include "backend/cuda/pack_blocks.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/block_order.h"
#include "tensor/block_reader.h"

namespace headwise::cuda {
namespace {

void PutHalf(uint8_t* slice, int at, uint16_t bits) {
  slice[at] = static_cast<uint8_t>(bits);
  slice[at + 1] = static_cast<uint8_t>(bits >> 8);
}

// Run `run_of_block` of a block becomes run `run` of a slice.
void PutRun(const BlockOrder& order, const BlockCodes& block, int run_of_block, int output, int run, uint8_t* slice) {
  for (int half = 0; half < (order.has_half_runs ? 2 : 1); ++half) {
    const ScalePlace place = PlaceOfScales(order, output, run, half);
    PutHalf(slice, place.d, order.has_powers ? F32ToBF16(E8M0ToF32(block.exponent) / 2) : block.d);
    if (order.has_min) PutHalf(slice, place.min, block.min);
    if (!order.has_super) continue;
    slice[place.scale] = block.scales[order.has_half_runs ? 2 * run_of_block + half : run_of_block];
    if (order.has_min) slice[place.min_scale] = block.mins[run_of_block];
  }
  const int low_bits = order.bits == 8 ? 8 : 4;
  const int sign = order.is_signed() ? 1 << (order.bits - 1) : 0;
  const uint8_t* codes = block.codes + run_of_block * kRunElements;
  for (int i = 0; i < kRunElements; ++i) {
    const int code = codes[i] ^ sign;
    const CodePlace place = PlaceOfCode(order, output, run, i);
    slice[place.low] |= static_cast<uint8_t>((code & ((1 << low_bits) - 1)) << place.low_shift);
    if (low_bits < order.bits) slice[place.high] |= static_cast<uint8_t>((code >> 4) << place.high_shift);
  }
}

}  // namespace

void PackTile(const ConstTensorView& rows, int64_t tile_idx, std::byte* tile) {
  const BlockOrder order = OrderOf(rows.dtype);
  const int64_t depth = rows.shape[1];
  const int64_t block_bytes = BlockBytes(rows.dtype);
  const int64_t num_blocks = depth / BlockElements(rows.dtype);
  const auto runs_of_block = static_cast<int>(BlockElements(rows.dtype) / kRunElements);
  auto* const slices = reinterpret_cast<uint8_t*>(tile);
  std::memset(slices, 0, static_cast<size_t>(order.TileBytes(depth)));
  const int64_t first_output = tile_idx * kOrderOutputs;
  const auto num_outputs = static_cast<int>(std::min<int64_t>(kOrderOutputs, rows.shape[0] - first_output));
  BlockCodes block;
  for (int output = 0; output < num_outputs; ++output) {
    const auto* from = static_cast<const std::byte*>(rows.data) + (first_output + output) * num_blocks * block_bytes;
    for (int64_t i = 0; i < num_blocks; ++i, from += block_bytes) {
      ReadBlock(rows.dtype, from, block);
      for (int run = 0; run < runs_of_block; ++run) {
        const int64_t run_of_row = i * runs_of_block + run;
        PutRun(order, block, run, output, static_cast<int>(run_of_row % order.runs),
               slices + run_of_row / order.runs * order.slice_bytes());
      }
    }
  }
}

}  // namespace headwise::cuda
