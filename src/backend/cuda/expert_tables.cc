#include "backend/cuda/expert_tables.h"

#include <cstring>
#include <optional>
#include <utility>

namespace headwise::cuda {
namespace {

// Of models: one for each layer. Tests make many.
constexpr size_t kMaxTables = 1024;

}  // namespace

ExpertTable ExpertTables::Get(std::span<const ExpertWeights> experts) {
  constexpr size_t kWords = sizeof(ExpertRow) / sizeof(uint64_t);
  static_assert(sizeof(ExpertRow) == kWords * sizeof(uint64_t));
  ExpertTable table{.rows = nullptr, .up = experts.front().up.weight.dtype, .down = experts.front().down.weight.dtype};
  words_.resize(experts.size() * kWords);
  for (size_t i = 0; i < experts.size(); ++i) {
    const LinearWeights* const matrices[kMatricesOfExpert] = {&experts[i].gate, &experts[i].up, &experts[i].down};
    ExpertRow row{};
    for (size_t j = 0; j < kMatricesOfExpert; ++j) {
      const DType dtype = matrices[j]->weight.dtype;
      row.weights[j] = matrices[j]->weight.planes[0];
      row.biases[j] = static_cast<const float*>(matrices[j]->bias.data);
      row.dtypes[j] = static_cast<int64_t>(dtype);
      std::optional<DType>& format = j < 2 ? table.up : table.down;
      if (format != dtype) format.reset();
    }
    std::memcpy(&words_[i * kWords], &row, sizeof(row));
  }
  table.rows = RowsOf(words_);
  return table;
}

const ExpertRow* ExpertTables::RowsOf(const Words& words) {
  const auto known = tables_.find(words);
  if (known != tables_.end()) return reinterpret_cast<const ExpertRow*>(known->second.data());
  if (!device_.ok()) return nullptr;
  if (tables_.size() >= kMaxTables) tables_.clear();
  Result<DeviceBuffer> buffer = DeviceBuffer::Make(device_, words.size() * sizeof(uint64_t));
  if (!buffer.ok()) {
    device_.Note(cudaErrorMemoryAllocation, "take memory for a table of experts");
    return nullptr;
  }
  device_.CopyFromHost(buffer->data(), words.data(), words.size() * sizeof(uint64_t));
  if (!device_.ok()) return nullptr;
  const auto added = tables_.emplace(words, *std::move(buffer)).first;
  return reinterpret_cast<const ExpertRow*>(added->second.data());
}

}  // namespace headwise::cuda
