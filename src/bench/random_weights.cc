#include "bench/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "tensor/blocks.h"

namespace headwise {
namespace {

// Random numbers are drawn once and repeated: a prime number of blocks, so that equal rows lie that many rows apart.
int64_t BankElements(DType dtype) {
  const int64_t block = BlockElements(dtype);
  return block == 1 ? 524287 : block == 32 ? int64_t{16381} * 32 : 2039 * block;
}

constexpr size_t kPieceBytes = size_t{8} << 20;

}  // namespace

RandomWeights::RandomWeights(const RandomWeightsOptions& options)
    : dtype_(options.dtype), pool_(options.num_threads), rng_(options.seed) {
  units_.resize(static_cast<size_t>(BankElements(dtype_)));
  for (float& unit : units_) unit = static_cast<float>(2 * rng_.Uniform() - 1);
}

RandomMatrix RandomWeights::Make(int64_t num_rows, int64_t num_columns, double deviation) {
  const std::vector<std::byte>& bank = Bank(deviation);
  const auto block_bytes = static_cast<size_t>(BlockBytes(dtype_));
  const size_t start = rng_.Below(bank.size() / block_bytes) * block_bytes;
  const auto size = static_cast<size_t>(BytesOf(dtype_, num_rows * num_columns));
  RandomMatrix made;
  // Not value-initialised: these may be all bytes that the machine has.
  made.memory.reset(new (std::nothrow) std::byte[size]);
  std::byte* const to = made.memory.get();
  if (to == nullptr) return made;
  pool_.ParallelFor(static_cast<int64_t>((size + kPieceBytes - 1) / kPieceBytes), [&](int64_t piece_idx, int) {
    const size_t piece = static_cast<size_t>(piece_idx) * kPieceBytes;
    const size_t end = std::min(size, piece + kPieceBytes);
    for (size_t at = piece; at < end;) {
      const size_t from = (start + at) % bank.size();
      const size_t count = std::min(end - at, bank.size() - from);
      std::memcpy(to + at, bank.data() + from, count);
      at += count;
    }
  });
  made.view = ConstTensorView(to, dtype_, Shape{num_rows, num_columns});
  return made;
}

const std::vector<std::byte>& RandomWeights::Bank(double deviation) {
  std::vector<std::byte>& bank = banks_[deviation];
  if (bank.empty()) {
    // Uniform on [-1, 1] has variance 1/3.
    const auto scale = static_cast<float>(deviation * std::sqrt(3.0));
    std::vector<float> values(units_);
    for (float& value : values) value *= scale;
    const auto num_values = static_cast<int64_t>(values.size());
    bank.resize(static_cast<size_t>(BytesOf(dtype_, num_values)));
    FromF32(dtype_, values.data(), num_values, bank.data());
  }
  return bank;
}

}  // namespace headwise
