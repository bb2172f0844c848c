#include "bench/op_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/cpu_info.h"
#include "base/format_bytes.h"
#include "base/huge_pages.h"
#include "base/rng.h"
#include "base/round_up.h"

namespace headwise {
namespace {

// Numbers are drawn once and repeated, a prime number of them so that rows differ.
constexpr int64_t kBankValues = 65521;
// The same for pages.
constexpr int64_t kBankPages = 61;
// Neighbouring pages of one head: what a chunk of 512 tokens of a prompt fills.
constexpr int64_t kRunTokens = 512;

int64_t BytesOf(const std::vector<LinearWeights>& launch) {
  int64_t bytes = 0;
  for (const LinearWeights& part : launch) bytes += part.weight.size_bytes();
  return bytes;
}

}  // namespace

Status CheckMemory(const Device& device, int64_t bytes, const char* what) {
  const int64_t all = device.MemoryBytes();
  if (all == 0 || bytes <= all / 4 * 3) return Status::Ok();
  return Status::OutOfMemory(
      fmt::format("{} would take {} of this device's {}", what, FormatBytes(bytes), FormatBytes(all)));
}

Status TakeTables(Backend& backend, KvStep& step) {
  std::vector<uint32_t> places(std::max(step.heads.size(), step.pages.size()));
  std::iota(places.begin(), places.end(), 0u);
  step.changed_heads = std::span(places).first(step.heads.size());
  step.changed_pages = std::span(places).first(step.pages.size());
  backend.BeginStep(step);
  step.changed_heads = step.changed_pages = {};
  return backend.device().Wait();
}

Result<RandomTensor> RandomTensor::Make(Backend& backend, const Shape& shape, uint64_t seed) {
  RandomTensor tensor;
  const int64_t num_elements = shape.num_elements();
  HW_ASSIGN_OR_RETURN(tensor.memory_,
                      DeviceBuffer::Make(backend.device(), static_cast<size_t>(num_elements) * sizeof(float)));
  tensor.view_ = {.data = tensor.memory_.data(), .dtype = DType::kF32, .shape = shape};
  Rng rng(seed);
  std::vector<float> bank(static_cast<size_t>(std::min(num_elements, kBankValues)));
  // Uniform on [-1, 1] has variance 1/3.
  for (float& value : bank) value = static_cast<float>((2 * rng.Uniform() - 1) * std::sqrt(3.0));
  for (int64_t at = 0; at < num_elements; at += kBankValues) {
    const int64_t count = std::min(kBankValues, num_elements - at);
    backend.device().CopyFromHost(static_cast<float*>(tensor.view_.data) + at, bank.data(),
                                  static_cast<size_t>(count) * sizeof(float));
  }
  return tensor;
}

int64_t MatrixCycle::bytes() const {
  int64_t bytes = 0;
  for (const std::vector<LinearWeights>& launch : launches) bytes += BytesOf(launch);
  return bytes;
}

Result<MatrixCycle> MakeRandomCycle(RandomWeights& random, std::unique_ptr<Backend> backend,
                                    const std::vector<LinearWeights>& shapes, int64_t min_bytes) {
  MatrixCycle cycle;
  cycle.backend = std::move(backend);
  const int64_t num_copies = std::max<int64_t>(1, CeilDiv(min_bytes, BytesOf(shapes)));
  HW_RETURN_IF_ERROR(CheckMemory(cycle.backend->device(), num_copies * BytesOf(shapes), "weights to cycle through"));
  for (int64_t copy = 0; copy < num_copies; ++copy) {
    std::vector<LinearWeights>& launch = cycle.launches.emplace_back();
    for (const LinearWeights& part : shapes) {
      const Shape& shape = part.weight.shape;
      RandomMatrix made = random.Make(shape[0], shape[1], 1.0 / std::sqrt(static_cast<double>(shape[1])));
      if (made.memory == nullptr) {
        return Status::OutOfMemory(fmt::format("no memory for a matrix of {}", FormatBytes(part.weight.size_bytes())));
      }
      HW_ASSIGN_OR_RETURN(const WeightMatrix adopted, cycle.backend->AdoptWeights(made.view));
      if (adopted == WeightMatrix(made.view)) cycle.owned.push_back(std::move(made.memory));
      launch.push_back({.weight = adopted, .bias = {}});
    }
  }
  return cycle;
}

RandomPages::RandomPages(const Backend& backend, const Wanted& wanted)
    : wanted_(wanted), newest_(wanted.layout), page_sizes_(PageSizesOf(backend, wanted.layout)) {
  newest_.format = NewestFormat(wanted.layout.format);
  for (const ResolvedRule& rule : wanted.rules) places_.push_back(PlacesOf(rule));
}

RandomPages::Places RandomPages::PlacesOf(const ResolvedRule& rule) const {
  const int64_t page_tokens = wanted_.layout.page_tokens;
  const int64_t end_page = CeilDiv(wanted_.first_pos + wanted_.num_rows, page_tokens);
  const int64_t rule_sink = CeilDiv(rule.sink, page_tokens);
  const int64_t oldest = std::max<int64_t>(0, wanted_.first_pos - rule.recent);
  Places places;
  places.num_sink = std::min(rule_sink, end_page);
  places.recent_first = std::max(rule_sink, oldest / page_tokens);
  places.num_recent = std::max<int64_t>(0, end_page - places.recent_first);
  if (page_sizes_.ages()) places.aged = AgedPages(rule, wanted_.first_pos, page_tokens);
  return places;
}

int64_t RandomPages::LayerBytes() const {
  PageCounts pages;
  for (const Places& places : places_) {
    for (int64_t idx = 0; idx < places.num_pages(); ++idx) ++(places.IsAged(idx) ? pages.aged : pages.newest);
  }
  return page_sizes_.BytesOf(pages);
}

Result<RandomPages> RandomPages::Make(Backend& backend, const Wanted& wanted, int64_t min_bytes, uint64_t seed) {
  RandomPages pages(backend, wanted);
  const int64_t layer_bytes = pages.LayerBytes();
  const int64_t num_layers = std::max<int64_t>(1, CeilDiv(min_bytes, layer_bytes));
  pages.bytes_ = num_layers * layer_bytes;
  HW_RETURN_IF_ERROR(CheckMemory(backend.device(), pages.bytes_, "KV pages"));
  HW_ASSIGN_OR_RETURN(pages.memory_,  // on huge pages, as the cache's own are
                      DeviceBuffer::Make(backend.device(), WholeHugePages(static_cast<size_t>(pages.bytes_))));
  pages.Place(num_layers);
  HW_RETURN_IF_ERROR(pages.Fill(backend, seed));
  return pages;
}

// In the order in which the chunks of a prompt would take them.
void RandomPages::Place(int64_t num_layers) {
  int64_t num_pages = 0;
  int64_t most_pages = 0;
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    for (size_t kv_head = 0; kv_head < places_.size(); ++kv_head) {
      const Places& places = places_[kv_head];
      const ResolvedRule& rule = wanted_.rules[kv_head];
      heads_.push_back({.mask = {.sink = rule.sink, .recent = rule.recent, .sink_reach = rule.sink_reach},
                        .table = static_cast<uint32_t>(num_pages),
                        .sink_pages = places.num_sink,
                        .ring_first = places.recent_first,
                        .newest = 0,
                        .aged = page_sizes_.ages() ? 1 : -1,
                        .aged_begin = places.aged.begin});
      num_pages += places.num_pages();
      most_pages = std::max(most_pages, places.num_pages());
    }
  }
  addresses_.resize(static_cast<size_t>(num_pages));
  numbers_.resize(addresses_.size());
  std::iota(numbers_.begin(), numbers_.end(), 0u);
  const int64_t run_pages = std::max<int64_t>(1, kRunTokens / wanted_.layout.page_tokens);
  std::byte* next = memory_.data();
  for (int64_t first = 0; first < most_pages; first += run_pages) {
    for (size_t i = 0; i < heads_.size(); ++i) {
      const Places& places = places_[i % places_.size()];
      for (int64_t idx = first; idx < std::min(first + run_pages, places.num_pages()); ++idx) {
        addresses_[static_cast<size_t>(heads_[i].table + idx)] = next;
        next += places.IsAged(idx) ? page_sizes_.aged : page_sizes_.newest;
      }
    }
  }
  spaces_ = {{.layout = newest_, .page_bytes = page_sizes_.newest, .extents = addresses_}};
  if (!page_sizes_.ages()) return;
  KvLayout aged = newest_;
  aged.format = KvFormat::kQ4;
  spaces_.push_back({.layout = aged, .page_bytes = page_sizes_.aged, .extents = addresses_});
}

// A few pages are written by the backend, token by token, and made older; all are copies of them.
Status RandomPages::Fill(Backend& backend, uint64_t seed) {
  Device& device = backend.device();
  const int64_t num_tokens = kBankPages * newest_.page_tokens;
  HW_ASSIGN_OR_RETURN(const RandomTensor k, RandomTensor::Make(backend, {num_tokens, newest_.head_dim}, seed));
  HW_ASSIGN_OR_RETURN(const RandomTensor v, RandomTensor::Make(backend, {num_tokens, newest_.head_dim}, seed + 1));
  HW_ASSIGN_OR_RETURN(const DeviceBuffer newest,
                      DeviceBuffer::Make(device, static_cast<size_t>(kBankPages * page_sizes_.newest)));
  HW_ASSIGN_OR_RETURN(const DeviceBuffer aged,
                      DeviceBuffer::Make(device, static_cast<size_t>(kBankPages * page_sizes_.aged)));
  // Each bank is one extent.
  std::byte* const bases[] = {newest.data(), aged.data()};
  std::vector<PageSpace> banks = spaces_;
  for (size_t i = 0; i < banks.size(); ++i) {
    banks[i].extents = {&bases[i], 1};
    banks[i].extent_shift = 31;
  }
  const StepHead head{};
  const StepRows rows{.num_rows = num_tokens};
  std::vector<PageMove> ages;
  for (uint32_t i = 0; page_sizes_.ages() && i < kBankPages; ++i) ages.push_back({.to_space = 1, .from = i, .to = i});
  std::vector<uint32_t> numbers(static_cast<size_t>(kBankPages));
  std::iota(numbers.begin(), numbers.end(), 0u);
  const int64_t age_end = static_cast<int64_t>(ages.size());
  KvStep step{.num_layers = 1, .num_kv_heads = 1};
  step.sequences = {&rows, 1};
  step.heads = {&head, 1};
  step.pages = numbers;
  step.spaces = banks;
  step.ages = ages;
  step.age_ends = {&age_end, 1};
  HW_RETURN_IF_ERROR(TakeTables(backend, step));
  backend.BeginStep(step);
  backend.AppendKv({.step = &step, .layer_idx = 0, .k = k.view(), .v = v.view()});
  backend.AgeKv({.step = &step, .layer_idx = 0});
  for (size_t i = 0; i < heads_.size(); ++i) {
    const Places& places = places_[i % places_.size()];
    for (int64_t idx = 0; idx < places.num_pages(); ++idx) {
      const PageSpace& bank = places.IsAged(idx) ? banks.back() : banks.front();
      const auto at = static_cast<size_t>(heads_[i].table + idx);
      device.Copy(addresses_[at], bank.Page(static_cast<uint32_t>(at % kBankPages)),
                  static_cast<size_t>(bank.page_bytes));
    }
  }
  return device.Wait();
}

KvStep RandomPages::Step(std::span<const StepRows> rows) const {
  KvStep step{.num_layers = num_layers(), .num_kv_heads = num_kv_heads()};
  step.sequences = rows;
  step.heads = heads_;
  step.pages = numbers_;
  step.spaces = spaces_;
  return step;
}

}  // namespace headwise
