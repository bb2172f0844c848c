#include "backend/cpu/expert_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/packed_weights.h"
#include "base/check.h"
#include "base/huge_pages.h"

namespace headwise::cpu {
namespace {

constexpr LinearWeights ExpertWeights::*kLinears[] = {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down};

size_t PackedSize(const WeightMatrix& matrix) {
  return (PackedBytes(matrix.dtype, matrix.shape) + 63) / 64 * 64;
}
size_t PackedSize(const ExpertWeights& expert) {
  return PackedSize(expert.gate.weight) + PackedSize(expert.up.weight) + PackedSize(expert.down.weight);
}

}  // namespace

bool ExpertStore::Add(ExpertWeights& expert, std::function<void()> release) {
  const auto is_packed = [&](LinearWeights ExpertWeights::*member) {
    return IsBlockFormat((expert.*member).weight.dtype);
  };
  if (limit_bytes_ == 0 || !std::ranges::all_of(kLinears, is_packed)) return false;
  idx_of_.emplace(expert.gate.weight.planes[0], added_.size());
  added_.push_back({.rows = expert, .release = std::move(release)});
  place_bytes_ = std::max(place_bytes_, PackedSize(expert));
  for (LinearWeights ExpertWeights::*member : kLinears) {
    (expert.*member).weight.order = WeightMatrix::Order::kOnDemand;
  }
  return true;
}

Status ExpertStore::Reserve(Device& device) {
  if (limit_bytes_ == 0) return Status::Ok();
  if (added_.empty()) {
    return Status::Unsupported(
        fmt::format("expert_bytes is {}, but the model has no experts in block formats that lie in its file: those in "
                    "plain formats are read where they lie, and those of a folder that was published in another format "
                    "are put together in memory (quantize makes a .gguf file of one); expected 0",
                    limit_bytes_));
  }
  const auto num_places = std::min(added_.size(), static_cast<size_t>(limit_bytes_) / place_bytes_);
  if (num_places == 0) {
    return Status::InvalidInput(
        fmt::format("expert_bytes is {}, expected at least the {} of one expert", limit_bytes_, place_bytes_));
  }
  const size_t bytes = WholeHugePages(num_places * place_bytes_);
  HW_ASSIGN_OR_RETURN(places_, DeviceBuffer::Make(device, bytes));
  expert_in_.assign(num_places, kNowhere);
  last_fetch_.assign(num_places, 0);
  return Status::Ok();
}

ExpertWeights ExpertStore::PackedIn(int64_t place, const Added& added) const {
  ExpertWeights packed = added.rows;
  const std::byte* at = places_.data() + static_cast<size_t>(place) * place_bytes_;
  for (LinearWeights ExpertWeights::*member : kLinears) {
    WeightMatrix& matrix = (packed.*member).weight;
    matrix = PackedMatrix(matrix.dtype, matrix.shape, at);
    at += PackedSize(matrix);
  }
  return packed;
}

int64_t ExpertStore::TakePlace() {
  const auto oldest = std::ranges::min_element(last_fetch_);
  HW_CHECK(*oldest < num_fetches_, "{} experts at once", expert_in_.size());
  const int64_t place = oldest - last_fetch_.begin();
  int64_t& expert = expert_in_[static_cast<size_t>(place)];
  if (expert != kNowhere) added_[static_cast<size_t>(expert)].place = kNowhere;
  expert = kNowhere;
  return place;
}

void ExpertStore::Pack(const Added& added, ThreadPool& pool) const {
  const ExpertWeights packed = PackedIn(added.place, added);
  for (LinearWeights ExpertWeights::*member : kLinears) {
    const void* to = (packed.*member).weight.planes[0];
    PackWeights((added.rows.*member).weight.rows(), static_cast<std::byte*>(const_cast<void*>(to)), pool);
  }
  added.release();
}

void ExpertStore::Fetch(std::span<const ExpertWeights> layer, std::span<const int32_t> wanted, ThreadPool& pool,
                        std::vector<ExpertWeights>& out) {
  ++num_fetches_;
  const auto find = [&](int32_t expert) {
    const WeightMatrix& gate = layer[static_cast<size_t>(expert)].gate.weight;
    if (gate.order != WeightMatrix::Order::kOnDemand) return idx_of_.end();
    const auto found = idx_of_.find(gate.planes[0]);
    HW_CHECK(found != idx_of_.end(), "an expert that was not added");
    return found;
  };
  // First those that are there, so that none of them gives way to another.
  for (const int32_t expert : wanted) {
    const auto found = find(expert);
    if (found == idx_of_.end()) continue;
    ++num_chosen_;
    const int64_t place = added_[found->second].place;
    if (place != kNowhere) last_fetch_[static_cast<size_t>(place)] = num_fetches_;
  }
  for (const int32_t expert : wanted) {
    const auto found = find(expert);
    if (found == idx_of_.end()) {
      out.push_back(layer[static_cast<size_t>(expert)]);
      continue;
    }
    Added& added = added_[found->second];
    if (added.place == kNowhere) {
      added.place = TakePlace();
      expert_in_[static_cast<size_t>(added.place)] = static_cast<int64_t>(found->second);
      last_fetch_[static_cast<size_t>(added.place)] = num_fetches_;
      Pack(added, pool);
      ++num_read_;
    }
    out.push_back(PackedIn(added.place, added));
  }
}

ExpertMemory ExpertStore::memory() const {
  ExpertMemory memory{.num_chosen = num_chosen_, .num_read = num_read_};
  for (const Added& added : added_) {
    const auto bytes = static_cast<int64_t>(PackedSize(added.rows));
    memory.total_bytes += bytes;
    if (added.place != kNowhere) memory.resident_bytes += bytes;
  }
  return memory;
}

}  // namespace headwise::cpu
