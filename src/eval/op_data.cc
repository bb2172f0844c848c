#include "eval/op_data.h"

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

Result<RandomPages> RandomPages::Make(Backend& backend, const Wanted& wanted, int64_t min_bytes, uint64_t seed) {
  RandomPages pages(wanted);
  const int64_t page_tokens = wanted.layout.page_tokens;
  const int64_t end_page = CeilDiv(wanted.first_pos + wanted.num_rows, page_tokens);
  const int64_t rule_sink = CeilDiv(wanted.rule.sink, page_tokens);
  const int64_t oldest = std::max<int64_t>(0, wanted.first_pos - wanted.rule.recent);
  pages.num_sink_ = std::min(rule_sink, end_page);
  pages.recent_first_ = std::max(rule_sink, oldest / page_tokens);
  pages.num_recent_ = std::max<int64_t>(0, end_page - pages.recent_first_);
  const auto page_bytes = static_cast<int64_t>(backend.PageBytes(wanted.layout));
  const int64_t layer_bytes = wanted.num_kv_heads * (pages.num_sink_ + pages.num_recent_) * page_bytes;
  const int64_t num_layers = std::max<int64_t>(1, CeilDiv(min_bytes, layer_bytes));
  pages.bytes_ = num_layers * layer_bytes;
  HW_RETURN_IF_ERROR(CheckMemory(pages.bytes_, "KV pages"));
  const int64_t whole_pages = CeilDiv(pages.bytes_, kHugePageBytes) * kHugePageBytes;
  pages.memory_ = DeviceBuffer(backend, static_cast<size_t>(whole_pages));
  pages.Place(backend, num_layers);
  pages.Fill(backend, seed);
  return pages;
}

// In the order in which the chunks of a prompt would take them.
void RandomPages::Place(Backend& backend, int64_t num_layers) {
  heads_.resize(static_cast<size_t>(num_layers * wanted_.num_kv_heads));
  const size_t page_bytes = backend.PageBytes(wanted_.layout);
  const int64_t num_pages = num_sink_ + num_recent_;
  const int64_t run_pages = std::max<int64_t>(1, kRunTokens / wanted_.layout.page_tokens);
  std::byte* next = memory_.data();
  for (int64_t first = 0; first < num_pages; first += run_pages) {
    for (Head& head : heads_) {
      for (int64_t idx = first; idx < std::min(first + run_pages, num_pages); ++idx, next += page_bytes) {
        (idx < num_sink_ ? head.sink : head.recent).push_back(next);
      }
    }
  }
}

// A few pages are written by the backend, token by token; the others are copies of them.
void RandomPages::Fill(Backend& backend, uint64_t seed) {
  const size_t page_bytes = backend.PageBytes(wanted_.layout);
  const int64_t num_pages = (num_sink_ + num_recent_) * static_cast<int64_t>(heads_.size());
  const int64_t num_bank = std::min(num_pages, kBankPages);
  std::vector<std::byte*> bank;
  for (int64_t i = 0; i < num_bank; ++i) bank.push_back(memory_.data() + static_cast<size_t>(i) * page_bytes);
  const int64_t num_tokens = num_bank * wanted_.layout.page_tokens;
  const RandomTensor k(backend, {num_tokens, wanted_.layout.head_dim}, seed);
  const RandomTensor v(backend, {num_tokens, wanted_.layout.head_dim}, seed + 1);
  HeadWork work{.num_rows = num_tokens};
  work.layout = wanted_.layout;
  work.pages = {.sink = {}, .recent = bank, .recent_first = 0};
  backend.AppendKv({.k = k.view(), .v = v.view(), .heads = {&work, 1}});
  for (int64_t i = num_bank; i < num_pages; ++i) {
    backend.Copy(memory_.data() + static_cast<size_t>(i) * page_bytes, bank[static_cast<size_t>(i % num_bank)],
                 page_bytes);
  }
}

std::vector<HeadWork> RandomPages::Work(int64_t layer_idx, int64_t num_rows) const {
  std::vector<HeadWork> heads;
  for (int64_t kv_head = 0; kv_head < wanted_.num_kv_heads; ++kv_head) {
    const Head& head = heads_[static_cast<size_t>(layer_idx * wanted_.num_kv_heads + kv_head)];
    HeadWork work{.num_rows = num_rows, .first_pos = wanted_.first_pos, .kv_head = kv_head};
    work.layout = wanted_.layout;
    work.pages = {.sink = head.sink, .recent = head.recent, .recent_first = recent_first_};
    work.sink = wanted_.rule.sink;
    work.recent = wanted_.rule.recent;
    work.sink_reach = wanted_.rule.sink_reach;
    heads.push_back(work);
  }
  return heads;
}

}  // namespace headwise
