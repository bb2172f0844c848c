#include "backend/cpu/packed_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels/matmul_kernels.h"
#include "base/check.h"
#include "tensor/block_reader.h"

namespace headwise::cpu {
namespace {

// Where the parts of one block of one panel lie.
struct PanelBlock {
  std::byte* halves;  // d[16], then min[16] where the format has minima
  std::byte* scales;  // scales of scales of the block's runs
  std::byte* codes;   // of the block's first run
};

template <typename Byte>
PanelBlock BlockOf(WeightType type, Byte* panel, int64_t block_idx) {
  std::byte* const begin = const_cast<std::byte*>(panel);
  std::byte* const halves = begin + BlockScalesAt(type, block_idx);
  return {.halves = halves,
          .scales = halves + SuperScalesAt(type),
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
  const CodePart pair = {quad / 4, quad % 4 * 2, 2, 0};
  if (bits == 2) return {{pair, {}}, 1};
  if (bits == 3) return {{pair, {2, quad, 1, 2}}, 2};
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

// What all of a block share.
void PutScales(const PackedFormat& format, const BlockCodes& from, int64_t lane, std::byte* halves) {
  switch (format.scale) {
    case ScaleKind::kFloat:
      std::memcpy(halves + lane * 4, &from.scale, sizeof(from.scale));
      return;
    case ScaleKind::kExponent:
      halves[lane] = std::byte{from.exponent};
      return;
    case ScaleKind::kHalf:
      break;
  }
  PutHalf(halves, lane, from.d);
  if (format.has_zero) {
    halves[kPanelRows * 2 + lane] = std::byte{from.zero};
  } else if (format.has_min) {
    PutHalf(halves + kPanelRows * 2, lane, from.min);
  }
}

// Scales of scales of a run: see kernels/packed_weights.h.
void PutRunScales(WeightType type, const BlockCodes& from, int64_t run, int64_t lane, std::byte* scales) {
  const PackedFormat format = FormatOf(type);
  if (type == WeightType::kQ2_K) {
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t i = 2 * run + half;
      scales[half * kPanelRows + lane] = static_cast<std::byte>(from.scales[i] | (from.mins[i] << 4));
    }
    return;
  }
  scales[lane] = std::byte{from.scales[format.has_half_runs ? 2 * run : run]};
  if (format.super_bytes < 2) return;
  scales[kPanelRows + lane] = std::byte{format.has_half_runs ? from.scales[2 * run + 1] : from.mins[run]};
}

// Where byte i of a lane of a quad lies.
int64_t ByteInQuad(WeightType type, int64_t lane, int64_t i) {
  return HasWholeCodes(type) ? lane * 4 + i : i * kPanelRows + lane;
}

// Codes of a quad of a lane, put with those that are there already, all four at once where they lie side by side.
void PutCodes(WeightType type, const uint8_t* codes, const CodePart& part, int64_t lane, std::byte* quad) {
  const uint32_t mask = (1u << part.bits) - 1;
  if (!HasWholeCodes(type)) {
    for (int i = 0; i < 4; ++i) {
      quad[ByteInQuad(type, lane, i)] |= static_cast<std::byte>(((codes[i] >> part.code_shift) & mask) << part.shift);
    }
    return;
  }
  std::byte* const to = quad + ByteInQuad(type, lane, 0);
  uint32_t word, there;
  std::memcpy(&word, codes, sizeof(word));
  std::memcpy(&there, to, sizeof(there));
  there |= ((word >> part.code_shift) & (mask * 0x01010101u)) << part.shift;
  std::memcpy(to, &there, sizeof(there));
}

// Block `from` becomes lane `lane` of the panel's block, whose bytes are 0 before the first lane.
void PutBlock(WeightType type, const BlockCodes& from, int64_t lane, const PanelBlock& to) {
  const PackedFormat format = FormatOf(type);
  PutScales(format, from, lane, to.halves);
  for (int64_t run = 0; run < BlockRuns(type); ++run) {
    if (format.has_super) PutRunScales(type, from, run, lane, to.scales + run * format.super_bytes * kPanelRows);
    const uint8_t* codes = from.codes + run * kRunElements;
    std::byte* to_codes = to.codes + run * RunCodeBytes(type);
    for (int quad = 0; quad < kRunQuads; ++quad, codes += 4) {
      const CodeParts parts = PartsOf(format.bits, quad);
      for (int p = 0; p < parts.num_parts; ++p) {
        PutCodes(type, codes, parts.parts[p], lane, to_codes + parts.parts[p].row * kQuadBytes);
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

// Of memory that this backend has made: a handle does not say that it may be written.
std::byte* PanelsOf(const WeightMatrix& packed) {
  return static_cast<std::byte*>(const_cast<void*>(packed.planes[0]));
}
PackedState* StateOf(const WeightMatrix& packed) {
  return static_cast<PackedState*>(const_cast<void*>(packed.planes[1]));
}

// The smallest f16 that is not below a number >= 0, or the largest there is.
uint16_t F16NotBelow(float value) {
  constexpr uint16_t kLargest = 0x7BFF;
  const uint16_t nearest = F32ToF16(value);
  return std::min<uint16_t>(F16ToF32(nearest) < value ? nearest + 1 : nearest, kLargest);
}

// One number for each output of a panel.
using OfOutputs = std::array<float, kPanelRows>;

// Runs of one group of a panel in q8_0.
class GroupOfRuns {
 public:
  GroupOfRuns(std::byte* panel, int64_t first, int64_t num) : panel_(panel), first_(first), num_(num) {}

  void Round() const {
    OfOutputs scales;
    const OfOutputs largest = Largest();
    for (size_t lane = 0; lane < scales.size(); ++lane) {
      // What is not finite in one run, every product of the group is.
      scales[lane] = std::isfinite(largest[lane])
                         ? F16ToF32(F16NotBelow(largest[lane] / static_cast<float>(kMostOfCode)))
                         : std::numeric_limits<float>::quiet_NaN();
    }
    for (int64_t run = first_; run < first_ + num_; ++run) RoundRun(run, scales);
  }

 private:
  static constexpr WeightType kType = WeightType::kQ8_0;
  static constexpr int kOffset = FormatOf(kType).offset;
  static constexpr int kMostOfCode = 127;
  static constexpr float kRounds = 0x1.8p23f;  // where numbers are whole

  std::byte* ScalesOf(int64_t run) const { return panel_ + BlockScalesAt(kType, run); }
  // [kRunQuads][kPanelRows][4]
  std::byte* CodesOf(int64_t run) const { return panel_ + RunCodesAt(kType, run); }

  // The largest magnitude of each output, or what is not finite.
  OfOutputs Largest() const {
    OfOutputs largest = {};
    for (int64_t run = first_; run < first_ + num_; ++run) {
      std::array<int, kQuadBytes> most = {};
      const std::byte* codes = CodesOf(run);
      for (int64_t i = 0; i < kRunQuads * kQuadBytes; ++i) {
        int& place = most[static_cast<size_t>(i % kQuadBytes)];
        place = std::max(place, std::abs(static_cast<int>(codes[i]) - kOffset));
      }
      for (size_t lane = 0; lane < largest.size(); ++lane) {
        if (std::isnan(largest[lane])) continue;
        const float scale = std::abs(F16ToF32(HalfAt(ScalesOf(run), static_cast<int64_t>(lane))));
        const int code = *std::max_element(most.begin() + lane * 4, most.begin() + lane * 4 + 4);
        const float magnitude = std::isfinite(scale) ? scale * static_cast<float>(code) : scale;
        if (!(magnitude <= largest[lane])) largest[lane] = magnitude;
      }
    }
    return largest;
  }

  void RoundRun(int64_t run, const OfOutputs& scales) const {
    std::array<float, kQuadBytes> factors;
    for (size_t i = 0; i < factors.size(); ++i) {
      const float scale = scales[i / 4];
      factors[i] = scale > 0 ? F16ToF32(HalfAt(ScalesOf(run), static_cast<int64_t>(i / 4))) / scale : 0.0f;
    }
    std::byte* codes = CodesOf(run);
    for (int64_t i = 0; i < kRunQuads * kQuadBytes; ++i) {
      const float value = static_cast<float>(static_cast<int>(codes[i]) - kOffset) * factors[i % kQuadBytes];
      const int code = static_cast<int>(value + kRounds) - static_cast<int>(kRounds);
      codes[i] = static_cast<std::byte>(std::clamp(code, -kMostOfCode, kMostOfCode) + kOffset);
    }
    for (size_t lane = 0; lane < scales.size(); ++lane) {
      PutHalf(ScalesOf(run), static_cast<int64_t>(lane), F32ToF16(scales[lane]));
    }
  }

  std::byte* panel_;
  int64_t first_, num_;
};

int CodeAt(WeightType type, const std::byte* codes, int64_t lane, int64_t i) {
  const CodeParts parts = PartsOf(FormatOf(type).bits, static_cast<int>(i / 4));
  int code = 0;
  for (int p = 0; p < parts.num_parts; ++p) {
    const CodePart& part = parts.parts[p];
    const int byte = static_cast<int>(codes[part.row * kQuadBytes + ByteInQuad(type, lane, i % 4)]);
    code |= ((byte >> part.shift) & ((1 << part.bits) - 1)) << part.code_shift;
  }
  return code;
}

// Of an (output, run), or of half of one: what codes are multiplied with, and what is added.
struct Line {
  float a = 0;
  float b = 0;
};
Line LineOf(WeightType type, const PanelBlock& block, int64_t run_of_block, int64_t half, int64_t lane) {
  const PackedFormat format = FormatOf(type);
  Line line;
  switch (format.scale) {
    case ScaleKind::kFloat:
      std::memcpy(&line.a, block.halves + lane * 4, sizeof(line.a));
      return line;
    case ScaleKind::kExponent:
      line.a = E8M0ToF32(static_cast<uint8_t>(block.halves[lane])) / 2;
      return line;
    case ScaleKind::kHalf:
      line.a = F16ToF32(HalfAt(block.halves, lane));
      break;
  }
  const std::byte* min = block.halves + kPanelRows * 2;
  if (format.has_zero) {
    line.b = -line.a * static_cast<float>(static_cast<uint8_t>(min[lane]));
  } else if (format.has_min) {
    line.b = F16ToF32(HalfAt(min, lane));
  }
  if (!format.has_super) return line;
  const std::byte* scales = block.scales + run_of_block * format.super_bytes * kPanelRows + lane;
  const auto scale = static_cast<uint8_t>(scales[format.has_half_runs ? half * kPanelRows : 0]);
  if (type == WeightType::kQ2_K) {
    line.a *= static_cast<float>(scale & 15);
    line.b *= -static_cast<float>(scale >> 4);
  } else if (format.has_min) {
    line.a *= static_cast<float>(scale);
    line.b *= -static_cast<float>(static_cast<uint8_t>(scales[kPanelRows]));
  } else {
    line.a *= static_cast<float>(static_cast<int8_t>(scale));
  }
  return line;
}

// What a code stands for, in units of the scale.
float LevelOf(WeightType type, int code) {
  switch (type) {
    case WeightType::kF8E4M3:
      return E4M3ToF32(static_cast<uint8_t>(code));
    case WeightType::kNF4:
      return kNF4Levels[code];
    case WeightType::kMXFP4:
      return kMXFP4Levels[code];
    case WeightType::kIQ4_NL:
    case WeightType::kIQ4_XS:
      return kIQ4Levels[code];
    default:
      return static_cast<float>(code - FormatOf(type).offset);
  }
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
    case DType::kMXFP4:
      return WeightType::kMXFP4;
    case DType::kQ2_K:
      return WeightType::kQ2_K;
    case DType::kQ3_K:
      return WeightType::kQ3_K;
    case DType::kIQ4_XS:
      return WeightType::kIQ4_XS;
    case DType::kTQ1_0:
    case DType::kTQ2_0:
      return WeightType::kTQ2_0;
    case DType::kU4:
      return WeightType::kU4;
    case DType::kF8E4M3:
      return WeightType::kF8E4M3;
    case DType::kNF4:
      return WeightType::kNF4;
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

void RoundToGroupScales(const WeightMatrix& packed, ThreadPool& pool) {
  const int64_t depth = packed.shape[1];
  PackedState* const state = StateOf(packed);
  if (packed.dtype != DType::kQ8_0 || depth % (2 * kRunElements) != 0) return;
  if (state == nullptr || state->has_group_scales) return;
  const int64_t panel_bytes = PanelBytes(WeightType::kQ8_0, depth);
  constexpr int64_t kGroupRuns = kGroupElements / kRunElements;
  pool.ParallelFor(NumPanels(packed.shape), [&](int64_t panel_idx, int) {
    std::byte* const panel = PanelsOf(packed) + panel_idx * panel_bytes;
    const int64_t num_runs = depth / kRunElements;
    for (int64_t run = 0; run < num_runs; run += kGroupRuns) {
      GroupOfRuns(panel, run, std::min(kGroupRuns, num_runs - run)).Round();
    }
  });
  state->has_group_scales = true;
}

bool HasGroupScales(const WeightMatrix& matrix) {
  return IsPacked(matrix) && StateOf(matrix) != nullptr && StateOf(matrix)->has_group_scales;
}

WeightMatrix PackedMatrix(DType dtype, const Shape& shape, const std::byte* packed, PackedState* state) {
  WeightMatrix matrix(ConstTensorView(packed, dtype, shape));
  matrix.order = WeightMatrix::Order::kBackend;
  matrix.planes[1] = state;
  return matrix;
}

bool IsPacked(const WeightMatrix& matrix) {
  const bool is_packed = matrix.order == WeightMatrix::Order::kBackend;
  HW_CHECK(is_packed == IsBlockFormat(matrix.dtype), "a matrix of {} was not adopted", NameOf(matrix.dtype));
  return is_packed;
}

void UnpackRow(const WeightMatrix& matrix, int64_t row, float* values) {
  const WeightType type = WeightTypeOf(matrix.dtype);
  const int64_t depth = matrix.shape[1];
  const auto* panel = static_cast<const std::byte*>(matrix.planes[0]) + row / kPanelRows * PanelBytes(type, depth);
  const int64_t lane = row % kPanelRows;
  for (int64_t run = 0; run < depth / kRunElements; ++run) {
    const PanelBlock block = BlockOf(type, panel, run / BlockRuns(type));
    const int64_t run_of_block = run % BlockRuns(type);
    const std::byte* codes = block.codes + run_of_block * RunCodeBytes(type);
    for (int64_t half = 0; half < 2; ++half) {
      const Line line = LineOf(type, block, run_of_block, half, lane);
      for (int64_t i = half * kRunElements / 2; i < (half + 1) * kRunElements / 2; ++i) {
        values[run * kRunElements + i] = line.a * LevelOf(type, CodeAt(type, codes, lane, i)) + line.b;
      }
    }
  }
}

}  // namespace headwise::cpu
