// A layer's experts as kernels find them: where the matrices of each lie, in the device's memory. Which experts a step
// chooses is known there alone, so that launches are of all of them.
#ifndef HEADWISE_BACKEND_CUDA_EXPERT_TABLES_H_
#define HEADWISE_BACKEND_CUDA_EXPERT_TABLES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "backend/cuda/cuda_device.h"
#include "backend/ops.h"
#include "device/device.h"

namespace headwise::cuda {

inline constexpr int kMatricesOfExpert = 3;  // gate, up, down

struct ExpertRow {
  const void* weights[kMatricesOfExpert];
  const float* biases[kMatricesOfExpert];  // or null
  int64_t dtypes[kMatricesOfExpert];       // DType
};

struct ExpertTable {
  const ExpertRow* rows = nullptr;  // null after an error
  // The one format of all gates and what they gate, and of all of down, or none.
  std::optional<DType> up, down;

  std::optional<DType> FormatOf(bool is_gated) const { return is_gated ? up : down; }
};

// Thread-safety: none. The device must outlive it.
class ExpertTables {
 public:
  explicit ExpertTables(CudaDevice& device) : device_(device) {}

  // Of experts that were asked for before rows are what was made then.
  ExpertTable Get(std::span<const ExpertWeights> experts);

 private:
  // Rows as numbers. By what they say: other weights at addresses that were used before are other rows, or the same.
  using Words = std::vector<uint64_t>;

  const ExpertRow* RowsOf(const Words& words);

  CudaDevice& device_;
  std::map<Words, DeviceBuffer> tables_;
  Words words_;  // of the call under way
};

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_EXPERT_TABLES_H_
