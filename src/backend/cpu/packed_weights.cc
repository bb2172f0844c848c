#include "backend/cpu/packed_weights.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tensor/block_reader.h"

namespace headwise::cpu {
namespace {

// Where the parts of one block of one panel lie.
struct PanelBlock {
  std::byte* halves;  // f16 d[16], then f16 min[16] where the format has minima
  std::byte* scales;  // scales of scales of the block's runs, 32 bytes each
  std::byte* codes;   // of the block's first run
};

template <typename Byte>
PanelBlock BlockOf(WeightType type, Byte* panel, int64_t block_idx) {
  std::byte* const begin = const_cast<std::byte*>(panel);
  std::byte* const halves = begin + BlockScalesAt(type, block_idx);
  return {.halves = halves,
          .scales = halves + (FormatOf(type).has_min ? 2 : 1) * kPanelRows * 2,
          .codes = begin + RunCodesAt(type, block_idx * BlockRuns(type))};
}

// Bits [shift, shift + bits) of the code of (quad, byte) in the bytes of one run: see kernels/packed_weights.h.
struct CodePart {
  int64_t row;  // of 64 bytes
  int shift;    // in the byte
  int bits;
  int code_shift;
};
struct CodeParts {
  CodePart parts[2];
  int num_parts;
};
CodeParts PartsOf(int bits, int quad) {
  if (bits == 8) return {{{quad, 0, 8, 0}, {}}, 1};
  const CodePart low = {quad % 4, quad / 4 * 4, 4, 0};
  if (bits == 4) return {{low, {}}, 1};
  if (bits == 5) return {{low, {4, quad, 1, 4}}, 2};
  return {{low, {4 + quad / 4, quad % 4 * 2, 2, 4}}, 2};
}

void PutHalf(std::byte* halves, int64_t lane, uint16_t bits) {
  std::memcpy(halves + lane * 2, &bits, sizeof(bits));
}
uint16_t HalfAt(const std::byte* halves, int64_t lane) {
  uint16_t bits;
  std::memcpy(&bits, halves + lane * 2, sizeof(bits));
  return bits;
}

// Block `from` becomes lane `lane` of the panel's block, whose bytes are 0 before the first lane.
void PutBlock(WeightType type, const BlockCodes& from, int64_t lane, const PanelBlock& to) {
  const PackedFormat format = FormatOf(type);
  PutHalf(to.halves, lane, from.d);
  if (format.has_min) PutHalf(to.halves + kPanelRows * 2, lane, from.min);
  for (int64_t run = 0; run < BlockRuns(type); ++run) {
    if (format.has_super) {
      std::byte* scales = to.scales + run * 2 * kPanelRows;
      scales[lane] = std::byte{from.scales[format.has_half_runs ? 2 * run : run]};
      scales[kPanelRows + lane] = std::byte{format.has_half_runs ? from.scales[2 * run + 1] : from.mins[run]};
    }
    const uint8_t* codes = from.codes + run * kRunElements;
    std::byte* to_codes = to.codes + run * RunCodeBytes(type) + lane * 4;
    for (int quad = 0; quad < kRunQuads; ++quad, codes += 4) {
      const CodeParts parts = PartsOf(format.bits, quad);
      for (int p = 0; p < parts.num_parts; ++p) {
        const CodePart& part = parts.parts[p];
        std::byte* bytes = to_codes + part.row * kQuadBytes;
        for (int i = 0; i < 4; ++i) {
          bytes[i] |= static_cast<std::byte>(((codes[i] >> part.code_shift) & ((1 << part.bits) - 1)) << part.shift);
        }
      }
    }
  }
}

void PackPanel(WeightType type, const ConstTensorView& from, int64_t panel_idx, std::byte* panel) {
  const int64_t depth = from.shape[1];
  const int64_t num_blocks = depth / BlockElements(from.dtype);
  const int64_t block_bytes = BlockBytes(from.dtype);
  std::memset(panel, 0, static_cast<size_t>(PanelBytes(type, depth)));
  const int64_t num_rows = std::min(kPanelRows, from.shape[0] - panel_idx * kPanelRows);
  BlockCodes block;
  for (int64_t lane = 0; lane < num_rows; ++lane) {
    const auto* row =
        static_cast<const std::byte*>(from.data) + (panel_idx * kPanelRows + lane) * num_blocks * block_bytes;
    for (int64_t i = 0; i < num_blocks; ++i) {
      ReadBlock(from.dtype, row + i * block_bytes, block);
      PutBlock(type, block, lane, BlockOf(type, panel, i));
    }
  }
}

int64_t NumPanels(const Shape& shape) {
  return (shape[0] + kPanelRows - 1) / kPanelRows;
}

int CodeAt(WeightType type, const std::byte* codes, int64_t lane, int64_t i) {
  const CodeParts parts = PartsOf(FormatOf(type).bits, static_cast<int>(i / 4));
  int code = 0;
  for (int p = 0; p < parts.num_parts; ++p) {
    const CodePart& part = parts.parts[p];
    const int byte = static_cast<int>(codes[part.row * kQuadBytes + lane * 4 + i % 4]);
    code |= ((byte >> part.shift) & ((1 << part.bits) - 1)) << part.code_shift;
  }
  return code;
}

}  // namespace

WeightType WeightTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return WeightType::kF32;
    case DType::kF16:
      return WeightType::kF16;
    case DType::kBF16:
      return WeightType::kBF16;
    case DType::kQ8_0:
      return WeightType::kQ8_0;
    case DType::kQ4_0:
      return WeightType::kQ4_0;
    case DType::kQ4_1:
      return WeightType::kQ4_1;
    case DType::kQ5_0:
      return WeightType::kQ5_0;
    case DType::kQ5_1:
      return WeightType::kQ5_1;
    case DType::kQ4_K:
      return WeightType::kQ4_K;
    case DType::kQ5_K:
      return WeightType::kQ5_K;
    case DType::kQ6_K:
      return WeightType::kQ6_K;
    case DType::kIQ4_NL:
      return WeightType::kIQ4_NL;
    case DType::kI32:
      break;
  }
  HW_CHECK(false, "{} is not a format of weights", NameOf(dtype));
}

size_t PackedBytes(DType dtype, const Shape& shape) {
  return static_cast<size_t>(NumPanels(shape) * PanelBytes(WeightTypeOf(dtype), shape[1]));
}

void PackWeights(const ConstTensorView& from, std::byte* packed, ThreadPool& pool) {
  const WeightType type = WeightTypeOf(from.dtype);
  const int64_t panel_bytes = PanelBytes(type, from.shape[1]);
  pool.ParallelFor(NumPanels(from.shape),
                   [&](int64_t panel_idx, int) { PackPanel(type, from, panel_idx, packed + panel_idx * panel_bytes); });
}

WeightMatrix PackedMatrix(DType dtype, const Shape& shape, const std::byte* packed) {
  WeightMatrix matrix(ConstTensorView(packed, dtype, shape));
  matrix.order = WeightMatrix::Order::kBackend;
  return matrix;
}

bool IsPacked(const WeightMatrix& matrix) {
  const bool is_packed = matrix.order == WeightMatrix::Order::kBackend;
  HW_CHECK(is_packed == IsBlockFormat(matrix.dtype), "a matrix of {} was not adopted", NameOf(matrix.dtype));
  return is_packed;
}

void UnpackRow(const WeightMatrix& matrix, int64_t row, float* values) {
  const WeightType type = WeightTypeOf(matrix.dtype);
  const PackedFormat format = FormatOf(type);
  const int64_t depth = matrix.shape[1];
  const auto* panel = static_cast<const std::byte*>(matrix.planes[0]) + row / kPanelRows * PanelBytes(type, depth);
  const int64_t lane = row % kPanelRows;
  for (int64_t run = 0; run < depth / kRunElements; ++run) {
    const PanelBlock block = BlockOf(type, panel, run / BlockRuns(type));
    const int64_t run_of_block = run % BlockRuns(type);
    const std::byte* scales = block.scales + run_of_block * 2 * kPanelRows + lane;
    const std::byte* codes = block.codes + run_of_block * RunCodeBytes(type);
    const float d = F16ToF32(HalfAt(block.halves, lane));
    const float min = format.has_min ? F16ToF32(HalfAt(block.halves + kPanelRows * 2, lane)) : 0.0f;
    for (int64_t i = 0; i < kRunElements; ++i) {
      const int code = CodeAt(type, codes, lane, i);
      float a = d;
      float b = min;
      if (format.has_half_runs) {
        a *= static_cast<float>(static_cast<int8_t>(scales[i / 16 * kPanelRows]));
      } else if (format.has_super) {
        a *= static_cast<float>(static_cast<uint8_t>(scales[0]));
        b *= -static_cast<float>(static_cast<uint8_t>(scales[kPanelRows]));
      }
      const int value = type == WeightType::kIQ4_NL ? kIQ4Levels[code] : code - format.offset;
      values[run * kRunElements + i] = a * static_cast<float>(value) + b;
    }
  }
}

}  // namespace headwise::cpu
