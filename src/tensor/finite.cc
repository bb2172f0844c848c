#include "tensor/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "tensor/blocks.h"

namespace headwise {

bool AllFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7F800000u;
  // Counted without a branch, so that the compiler compares several at a time.
  uint32_t num_others = 0;
  for (const float value : values) num_others += (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1 : 0;
  return num_others == 0;
}

std::optional<std::string> FindNonFinite(const ConstTensorView& tensor) {
  const bool is_matrix = tensor.shape.rank() == 2;
  const int64_t num_rows = is_matrix ? tensor.shape[0] : 1;
  const int64_t columns = tensor.shape[is_matrix ? 1 : 0];
  const auto row_bytes = static_cast<size_t>(BytesOf(tensor.dtype, columns));
  std::vector<float> values(static_cast<size_t>(columns));
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto* data = static_cast<const std::byte*>(tensor.data) + static_cast<size_t>(row) * row_bytes;
    ToF32(tensor.dtype, data, columns, values.data());
    if (AllFinite(values)) continue;
    const auto found = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    const auto column = found - values.begin();
    return is_matrix ? fmt::format("{} at [{}, {}]", *found, row, column) : fmt::format("{} at [{}]", *found, column);
  }
  return std::nullopt;
}

}  // namespace headwise
