#include "bench/op_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cpu_info.h"
#include "base/format_bytes.h"
#include "base/rng.h"

namespace headwise {
namespace {

// Numbers are drawn once and repeated, a prime number of them so that rows differ.
constexpr int64_t kBankValues = 65521;
// The same for pages.
constexpr int64_t kBankPages = 61;
// Neighbouring pages of one head: what a chunk of 512 tokens of a prompt fills.
constexpr int64_t kRunTokens = 512;
// Whole multiples of this get huge pages, as the cache's own pages do.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t BytesOf(const std::vector<LinearWeights>& launch) {
  int64_t bytes = 0;
  for (const LinearWeights& part : launch) bytes += part.weight.size_bytes();
  return bytes;
}

}  // namespace

Status CheckMemory(int64_t bytes, const char* what) {
  const int64_t machine = PhysicalMemoryBytes();
  if (machine == 0 || bytes <= machine / 4 * 3) return Status::Ok();
  return Status::OutOfMemory(
      fmt::format("{} would take {} of this machine's {}", what, FormatBytes(bytes), FormatBytes(machine)));
}

RandomTensor::RandomTensor(Backend& backend, const Shape& shape, uint64_t seed)
    : memory_(backend, static_cast<size_t>(shape.num_elements()) * sizeof(float)),
      view_{.data = memory_.data(), .dtype = DType::kF32, .shape = shape} {
  Rng rng(seed);
  const int64_t num_elements = shape.num_elements();
  std::vector<float> bank(static_cast<size_t>(std::min(num_elements, kBankValues)));
  // Uniform on [-1, 1] has variance 1/3.
  for (float& value : bank) value = static_cast<float>((2 * rng.Uniform() - 1) * std::sqrt(3.0));
  for (int64_t at = 0; at < num_elements; at += kBankValues) {
    const int64_t count = std::min(kBankValues, num_elements - at);
    backend.CopyFromHost(static_cast<float*>(view_.data) + at, bank.data(), static_cast<size_t>(count) * sizeof(float));
  }
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
  HW_RETURN_IF_ERROR(CheckMemory(num_copies * BytesOf(shapes), "weights to cycle through"));
  for (int64_t copy = 0; copy < num_copies; ++copy) {
    std::vector<LinearWeights>& launch = cycle.launches.emplace_back();
    for (const LinearWeights& part : shapes) {
      const Shape& shape = part.weight.shape;
      RandomMatrix made = random.Make(shape[0], shape[1], 1.0 / std::sqrt(static_cast<double>(shape[1])));
      if (made.memory == nullptr) {
        return Status::OutOfMemory(fmt::format("no memory for a matrix of {}", FormatBytes(part.weight.size_bytes())));
      }
      HW_ASSIGN_OR_RETURN(const ConstTensorView adopted, cycle.backend->AdoptWeights(made.view));
      if (adopted.data == made.view.data) cycle.owned.push_back(std::move(made.memory));
      launch.push_back({.weight = adopted, .bias = {}});
    }
  }
  return cycle;
}

RandomPages::RandomPages(const Backend& backend, const Wanted& wanted)
    : wanted_(wanted), newest_(wanted.layout), page_sizes_(PageSizesOf(backend, wanted.layout)) {
  newest_.format = NewestFormat(wanted.layout.format);
  const int64_t page_tokens = wanted.layout.page_tokens;
  const int64_t end_page = CeilDiv(wanted.first_pos + wanted.num_rows, page_tokens);
  const int64_t rule_sink = CeilDiv(wanted.rule.sink, page_tokens);
  const int64_t oldest = std::max<int64_t>(0, wanted.first_pos - wanted.rule.recent);
  num_sink_ = std::min(rule_sink, end_page);
  recent_first_ = std::max(rule_sink, oldest / page_tokens);
  num_recent_ = std::max<int64_t>(0, end_page - recent_first_);
  if (page_sizes_.ages()) aged_ = AgedPages(wanted.rule, wanted.first_pos, page_tokens);
}

bool RandomPages::IsAged(int64_t idx) const {
  return aged_.Contains(idx < num_sink_ ? idx : recent_first_ + idx - num_sink_);
}

int64_t RandomPages::BytesOfHead() const {
  PageCounts pages;
  for (int64_t idx = 0; idx < num_pages(); ++idx) ++(IsAged(idx) ? pages.aged : pages.newest);
  return page_sizes_.BytesOf(pages);
}

Result<RandomPages> RandomPages::Make(Backend& backend, const Wanted& wanted, int64_t min_bytes, uint64_t seed) {
  RandomPages pages(backend, wanted);
  const int64_t layer_bytes = wanted.num_kv_heads * pages.BytesOfHead();
  const int64_t num_layers = std::max<int64_t>(1, CeilDiv(min_bytes, layer_bytes));
  pages.bytes_ = num_layers * layer_bytes;
  HW_RETURN_IF_ERROR(CheckMemory(pages.bytes_, "KV pages"));
  const int64_t whole_pages = CeilDiv(pages.bytes_, kHugePageBytes) * kHugePageBytes;
  pages.memory_ = DeviceBuffer(backend, static_cast<size_t>(whole_pages));
  pages.Place(num_layers);
  pages.Fill(backend, seed);
  return pages;
}

// In the order in which the chunks of a prompt would take them.
void RandomPages::Place(int64_t num_layers) {
  heads_.resize(static_cast<size_t>(num_layers * wanted_.num_kv_heads));
  const int64_t run_pages = std::max<int64_t>(1, kRunTokens / wanted_.layout.page_tokens);
  std::byte* next = memory_.data();
  for (int64_t first = 0; first < num_pages(); first += run_pages) {
    for (Head& head : heads_) {
      for (int64_t idx = first; idx < std::min(first + run_pages, num_pages()); ++idx) {
        (idx < num_sink_ ? head.sink : head.recent).push_back(next);
        next += IsAged(idx) ? page_sizes_.aged : page_sizes_.newest;
      }
    }
  }
}

// A few pages are written by the backend, token by token, and made older; all are copies of them.
void RandomPages::Fill(Backend& backend, uint64_t seed) {
  const auto bank_of = [&](int64_t page_bytes, std::vector<std::byte*>& pages) {
    DeviceBuffer memory(backend, static_cast<size_t>(kBankPages * page_bytes));
    for (int64_t i = 0; i < kBankPages; ++i) pages.push_back(memory.data() + i * page_bytes);
    return memory;
  };
  std::vector<std::byte*> newest, aged;
  const DeviceBuffer newest_memory = bank_of(page_sizes_.newest, newest);
  const int64_t num_tokens = kBankPages * newest_.page_tokens;
  const RandomTensor k(backend, {num_tokens, newest_.head_dim}, seed);
  const RandomTensor v(backend, {num_tokens, newest_.head_dim}, seed + 1);
  HeadWork work{.num_rows = num_tokens};
  work.layout = newest_;
  work.pages = {.sink = {}, .recent = newest, .recent_first = 0};
  backend.AppendKv({.k = k.view(), .v = v.view(), .heads = {&work, 1}});
  DeviceBuffer aged_memory;
  if (page_sizes_.ages()) {
    aged_memory = bank_of(page_sizes_.aged, aged);
    const std::vector<const std::byte*> from(newest.begin(), newest.end());
    backend.AgeKv({.layout = newest_, .from = from, .to = aged});
  }
  size_t next = 0;
  for (const Head& head : heads_) {
    for (int64_t idx = 0; idx < num_pages(); ++idx, ++next) {
      std::byte* page =
          idx < num_sink_ ? head.sink[static_cast<size_t>(idx)] : head.recent[static_cast<size_t>(idx - num_sink_)];
      const std::vector<std::byte*>& bank = IsAged(idx) ? aged : newest;
      const int64_t page_bytes = IsAged(idx) ? page_sizes_.aged : page_sizes_.newest;
      backend.Copy(page, bank[next % bank.size()], static_cast<size_t>(page_bytes));
    }
  }
}

std::vector<HeadWork> RandomPages::Work(int64_t layer_idx, int64_t num_rows) const {
  std::vector<HeadWork> heads;
  for (int64_t kv_head = 0; kv_head < wanted_.num_kv_heads; ++kv_head) {
    const Head& head = heads_[static_cast<size_t>(layer_idx * wanted_.num_kv_heads + kv_head)];
    HeadWork work{.num_rows = num_rows, .first_pos = wanted_.first_pos, .kv_head = kv_head};
    work.layout = newest_;
    work.aged_begin = aged_.begin;
    work.aged_end = aged_.end;
    work.pages = {.sink = head.sink, .recent = head.recent, .recent_first = recent_first_};
    work.sink = wanted_.rule.sink;
    work.recent = wanted_.rule.recent;
    work.sink_reach = wanted_.rule.sink_reach;
    heads.push_back(work);
  }
  return heads;
}

}  // namespace headwise
