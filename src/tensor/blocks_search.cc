// How a super-block is written: each sub-block alone is fitted by alternating between nearest codes and the least
// squares that follow from them, from several starts; the scales so found are quantised; then, with scales as they
// will be read, codes of scales are tried one step up and down and the super-block's own f16 scales fitted again, for
// as long as the error falls.
//
// The error of a value counts by its magnitude plus the root mean square of the super-block, so that the few large
// values, which make up most of a dot product, are not given up for the many small ones.
//
// Sums are in double, which no finite input overflows.
#include "tensor/blocks_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "tensor/block_codes.h"

namespace headwise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Of a super-block's own scales. Six instead of three lower errors of gaussian data by 0.02 %.
constexpr int kMaxRefits = 3;

// What squared errors of the values count.
std::array<float, kSuperBlock> WeightsOf(const float* values) {
  double squares = 0;
  for (int i = 0; i < kSuperBlock; ++i) squares += double{values[i]} * double{values[i]};
  const double rms = std::sqrt(squares / kSuperBlock);
  std::array<float, kSuperBlock> weights;
  // Halved, so that the sum of two numbers at the end of f32 stays in it.
  for (size_t i = 0; i < kSuperBlock; ++i) weights[i] = static_cast<float>(rms / 2) + std::abs(values[i]) / 2;
  return weights;
}

double NearestHalf(double value) {
  const double limited = std::clamp(value, -double{kLargestHalf}, double{kLargestHalf});
  return F16ToF32(F32ToF16(static_cast<float>(limited)));
}

// The f16 next to `value` on the side away from zero, so that the largest code still reaches what it is meant to where
// f16 is subnormal and coarse.
double HalfBeyond(double value) {
  const double limited = std::min(std::abs(value), double{kLargestHalf});
  uint16_t bits = F32ToF16(static_cast<float>(limited));
  if (double{F16ToF32(bits)} < limited) ++bits;
  return std::copysign(double{F16ToF32(bits)}, value);
}

double InverseOrZero(double scale) {
  return scale == 0 ? 0 : 1 / scale;
}

// ---- q4_k: value = scale * code - minimum ----

constexpr int kLineElements = 32;
constexpr int kNumLines = kSuperBlock / kLineElements;
constexpr int kTopCode = 15;
constexpr int kTopLineCode = 63;

struct Line {
  double scale = 0;    // >= 0
  double minimum = 0;  // >= 0
};

int CodeOnLine(double value, const Line& line, double inverse) {
  return static_cast<int>(std::clamp((value + line.minimum) * inverse, 0.0, double{kTopCode}) + 0.5);
}

// The normal equations of value = scale * step - minimum * offset, all weighted.
struct NormalEquations {
  double steps_squared = 0, offsets_squared = 0, steps_offsets = 0, steps_values = 0, offsets_values = 0;

  void Add(double weight, double step, double offset, double value) {
    steps_squared += weight * step * step;
    offsets_squared += weight * offset * offset;
    steps_offsets += weight * step * offset;
    steps_values += weight * step * value;
    offsets_values += weight * offset * value;
  }
  // The solution whose minimum is not negative; `otherwise` where there is none.
  Line Solve(const Line& otherwise) const {
    const double determinant = steps_squared * offsets_squared - steps_offsets * steps_offsets;
    if (determinant > 0) {
      const Line line = {(offsets_squared * steps_values - steps_offsets * offsets_values) / determinant,
                         (steps_offsets * steps_values - steps_squared * offsets_values) / determinant};
      if (line.scale > 0 && line.minimum >= 0) return line;
    }
    if (steps_squared > 0 && steps_values > 0) return {steps_values / steps_squared, 0};
    return otherwise;
  }
};

using LineCodes = std::array<double, kLineElements>;

// Nearest codes on the line. `values` [32].
LineCodes CodesOnLine(const float* values, const Line& line) {
  const double inverse = InverseOrZero(line.scale);
  LineCodes codes;
  for (size_t i = 0; i < kLineElements; ++i) codes[i] = CodeOnLine(values[i], line, inverse);
  return codes;
}

// The weighted squared error of these codes on the line. `values`, `weights` [32].
double ErrorOnLine(const float* values, const float* weights, const LineCodes& codes, const Line& line) {
  double error = 0;
  for (size_t i = 0; i < kLineElements; ++i) {
    const double difference = line.scale * codes[i] - line.minimum - values[i];
    error += weights[i] * difference * difference;
  }
  return error;
}

// The best line for these codes; `otherwise` where there is none. `values`, `weights` [32].
Line LineOfCodes(const float* values, const float* weights, const LineCodes& codes, const Line& otherwise) {
  NormalEquations sums;
  for (size_t i = 0; i < kLineElements; ++i) sums.Add(weights[i], codes[i], 1, values[i]);
  return sums.Solve(otherwise);
}

// A line for one sub-block as if its scale and minimum could be any numbers.
Line FitLine(const float* values, const float* weights) {
  const auto [least, most] = std::minmax_element(values, values + kLineElements);
  const double bottom = std::min(double{*least}, 0.0), top = *most;
  Line best = {0, -bottom};
  if (top <= bottom) return best;
  double best_error = ErrorOnLine(values, weights, CodesOnLine(values, best), best);
  // Steps by which the grid falls short of the range at either end: clipping makes the steps between finer. Found by
  // trial; four numbers in place of three lower errors by 0.2 % and take almost twice the time.
  constexpr double kClips[] = {-0.3, 0.4, 1.1};
  for (const double clip_bottom : kClips) {
    for (const double clip_top : kClips) {
      const double scale = (top - bottom) / (kTopCode + clip_bottom + clip_top);
      Line line = {scale, std::max(0.0, -bottom - clip_bottom * scale)};
      for (int round = 0; round < 3; ++round) {
        const LineCodes codes = CodesOnLine(values, line);
        line = LineOfCodes(values, weights, codes, line);
        const double error = ErrorOnLine(values, weights, codes, line);
        if (error < best_error) {
          best_error = error;
          best = line;
        }
      }
    }
  }
  return best;
}

struct AffineBlock {
  Line unit;  // what a scale code and a minimum code of 1 stand for; both f16
  AffineCodes codes;
  double error = kInfinity;

  Line LineOf(int idx) const {
    const auto i = static_cast<size_t>(idx);
    return {unit.scale * codes.scales[i], unit.minimum * codes.minima[i]};
  }
};

uint8_t LineCode(double value, double unit) {
  return static_cast<uint8_t>(std::clamp(value * InverseOrZero(unit), 0.0, double{kTopLineCode}) + 0.5);
}

// Moves each sub-block's scale and minimum to the best codes among those at most one step away; sets the error.
void ImproveCodes(const float* values, const float* weights, AffineBlock& block) {
  block.error = 0;
  for (int idx = 0; idx < kNumLines; ++idx) {
    const int offset = idx * kLineElements;
    uint8_t &scale = block.codes.scales[static_cast<size_t>(idx)],
            &minimum = block.codes.minima[static_cast<size_t>(idx)];
    const int scale_begin = std::max(scale - 1, 0), scale_end = std::min(scale + 1, kTopLineCode);
    const int minimum_begin = std::max(minimum - 1, 0), minimum_end = std::min(minimum + 1, kTopLineCode);
    double best_error = kInfinity;
    for (int s = scale_begin; s <= scale_end; ++s) {
      for (int m = minimum_begin; m <= minimum_end; ++m) {
        const Line line = {block.unit.scale * s, block.unit.minimum * m};
        const double error = ErrorOnLine(values + offset, weights + offset, CodesOnLine(values + offset, line), line);
        if (error >= best_error) continue;
        best_error = error;
        scale = static_cast<uint8_t>(s);
        minimum = static_cast<uint8_t>(m);
      }
    }
    block.error += best_error;
  }
}

// The f16 scales that suit the block's codes best.
Line RefitUnit(const float* values, const float* weights, const AffineBlock& block) {
  NormalEquations sums;
  for (int i = 0; i < kSuperBlock; ++i) {
    const int idx = i / kLineElements;
    const Line line = block.LineOf(idx);
    const double scale_code = block.codes.scales[static_cast<size_t>(idx)];
    const double minimum_code = block.codes.minima[static_cast<size_t>(idx)];
    sums.Add(weights[i], scale_code * CodeOnLine(values[i], line, InverseOrZero(line.scale)), minimum_code, values[i]);
  }
  const Line unit = sums.Solve(block.unit);
  return {NearestHalf(unit.scale), NearestHalf(unit.minimum)};
}

AffineBlock SearchAffine(const float* values) {
  const std::array<float, kSuperBlock> weights = WeightsOf(values);
  std::array<Line, kNumLines> lines;
  Line largest;
  for (int idx = 0; idx < kNumLines; ++idx) {
    Line& line = lines[static_cast<size_t>(idx)];
    line = FitLine(values + idx * kLineElements, weights.data() + idx * kLineElements);
    largest = {std::max(largest.scale, line.scale), std::max(largest.minimum, line.minimum)};
  }
  AffineBlock trial, best;
  trial.unit = {HalfBeyond(largest.scale / kTopLineCode), HalfBeyond(largest.minimum / kTopLineCode)};
  for (size_t i = 0; i < kNumLines; ++i) {
    trial.codes.scales[i] = LineCode(lines[i].scale, trial.unit.scale);
    trial.codes.minima[i] = LineCode(lines[i].minimum, trial.unit.minimum);
  }
  for (int refit = 0; refit <= kMaxRefits; ++refit) {
    ImproveCodes(values, weights.data(), trial);
    if (trial.error >= best.error) break;
    best = trial;
    trial.unit = RefitUnit(values, weights.data(), best);
  }
  return best;
}

// ---- q6_k: value = scale * code, codes -32 to 31 ----

constexpr int kScaledElements = 16;
constexpr int kNumScaled = kSuperBlock / kScaledElements;
constexpr int kCodeOffset = 32;

int SignedCode(double value, double inverse) {
  // Rounded where all numbers are positive, then moved back.
  constexpr double kMostAbove = 2 * kCodeOffset - 1;
  return static_cast<int>(std::clamp(value * inverse + kCodeOffset, 0.0, kMostAbove) + 0.5) - kCodeOffset;
}

struct ScaleTrial {
  double error;             // of nearest codes under the scale that was tried
  double steps_values = 0;  // sums over those codes: their quotient is the best scale for them
  double steps_squared = 0;
};

// `values`, `weights` [16].
ScaleTrial TryScale(const float* values, const float* weights, double scale) {
  const double inverse = InverseOrZero(scale);
  ScaleTrial trial = {.error = 0};
  for (int i = 0; i < kScaledElements; ++i) {
    const double value = values[i], weight = weights[i];
    const double code = SignedCode(value, inverse);
    const double difference = scale * code - value;
    trial.error += weight * difference * difference;
    trial.steps_values += weight * code * value;
    trial.steps_squared += weight * code * code;
  }
  return trial;
}

// A scale, of either sign, for one sub-block as if it could be any number.
double FitScale(const float* values, const float* weights) {
  const double extreme =
      *std::max_element(values, values + kScaledElements, [](float a, float b) { return std::abs(a) < std::abs(b); });
  double best = 0, best_error = kInfinity;
  // The code of the value of largest magnitude: near either end of the range, or beyond it and clipped.
  constexpr double kExtremeCodes[] = {-33, -32.4, -31.8, -31.2, -30.6, -30, 29.4, 30, 30.6, 31.2, 31.8};
  for (const double extreme_code : kExtremeCodes) {
    double scale = extreme / extreme_code;
    for (int round = 0; round < 2; ++round) {
      const ScaleTrial trial = TryScale(values, weights, scale);
      if (trial.error < best_error) {
        best_error = trial.error;
        best = scale;
      }
      if (trial.steps_squared > 0) scale = trial.steps_values / trial.steps_squared;
    }
  }
  return best;
}

struct ScaledBlock {
  double unit = 0;  // what a scale code of 1 stands for; f16
  std::array<int8_t, kNumScaled> codes{};
  double error = kInfinity;
};

int8_t ScaleCode(double scale, double unit) {
  return static_cast<int8_t>(std::lround(std::clamp(scale * InverseOrZero(unit), -128.0, 127.0)));
}

// Moves each sub-block's scale to the best code among those at most one step away; sets the error, and returns the unit
// that suits the codes best.
double ImproveScales(const float* values, const float* weights, ScaledBlock& block) {
  block.error = 0;
  double steps_values = 0, steps_squared = 0;
  for (int idx = 0; idx < kNumScaled; ++idx) {
    const int offset = idx * kScaledElements;
    int8_t& code = block.codes[static_cast<size_t>(idx)];
    const int begin = std::max(code - 1, -128), end = std::min(code + 1, 127);
    ScaleTrial best = {.error = kInfinity};
    for (int c = begin; c <= end; ++c) {
      const ScaleTrial trial = TryScale(values + offset, weights + offset, block.unit * c);
      if (trial.error >= best.error) continue;
      best = trial;
      code = static_cast<int8_t>(c);
    }
    block.error += best.error;
    steps_values += code * best.steps_values;
    steps_squared += code * code * best.steps_squared;
  }
  return steps_squared > 0 ? NearestHalf(steps_values / steps_squared) : block.unit;
}

ScaledBlock SearchScaled(const float* values) {
  const std::array<float, kSuperBlock> weights = WeightsOf(values);
  std::array<double, kNumScaled> scales;
  double extreme = 0;
  for (int idx = 0; idx < kNumScaled; ++idx) {
    double& scale = scales[static_cast<size_t>(idx)];
    scale = FitScale(values + idx * kScaledElements, weights.data() + idx * kScaledElements);
    if (std::abs(scale) > std::abs(extreme)) extreme = scale;
  }
  ScaledBlock trial, best;
  trial.unit = HalfBeyond(extreme / -128);
  for (size_t i = 0; i < kNumScaled; ++i) trial.codes[i] = ScaleCode(scales[i], trial.unit);
  for (int refit = 0; refit <= kMaxRefits; ++refit) {
    const double refitted = ImproveScales(values, weights.data(), trial);
    if (trial.error >= best.error) break;
    best = trial;
    trial.unit = refitted;
  }
  return best;
}

}  // namespace

void QuantizeQ4K(const float* values, uint8_t* block) {
  const AffineBlock found = SearchAffine(values);
  StoreHalf(static_cast<float>(found.unit.scale), block);
  StoreHalf(static_cast<float>(found.unit.minimum), block + 2);
  PackAffineCodes(found.codes, block + 4);
  uint8_t* nibbles = block + 4 + kAffineCodesBytes;
  const auto code = [&](int i) {
    const Line line = found.LineOf(i / kLineElements);
    return CodeOnLine(values[i], line, InverseOrZero(line.scale));
  };
  // 32 bytes hold two sub-blocks, in low and high nibbles.
  for (int j = 0; j < kSuperBlock / 2; ++j) {
    const int i = j / 32 * 64 + j % 32;
    nibbles[j] = static_cast<uint8_t>(code(i) | (code(i + 32) << 4));
  }
}

void QuantizeQ6K(const float* values, uint8_t* block) {
  const ScaledBlock found = SearchScaled(values);
  uint8_t *low = block, *high = block + 128, *scales = block + 192;
  std::memset(block, 0, 192);
  for (int i = 0; i < kSuperBlock; ++i) {
    const double scale = found.unit * found.codes[static_cast<size_t>(i / kScaledElements)];
    const int code = SignedCode(values[i], InverseOrZero(scale)) + kCodeOffset;
    const int half = i / 128, within = i % 128;
    low[64 * half + within % 64] |= static_cast<uint8_t>((code & 15) << (4 * (within / 64)));
    high[32 * half + within % 32] |= static_cast<uint8_t>((code >> 4) << (2 * (within / 32)));
  }
  std::memcpy(scales, found.codes.data(), kNumScaled);
  StoreHalf(static_cast<float>(found.unit), block + 208);
}

}  // namespace headwise
