// Tests that drive one KV head without an engine, on backends that compute on host memory.
#ifndef HEADWISE_TESTS_SUPPORT_HEAD_PAGES_H_
#define HEADWISE_TESTS_SUPPORT_HEAD_PAGES_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "backend/ops.h"

namespace headwise {

// `values` as [num_rows, what remains] f32.
inline TensorView ViewOf(std::vector<float>& values, int64_t num_rows) {
  return {
      .data = values.data(), .dtype = DType::kF32, .shape = {num_rows, static_cast<int64_t>(values.size()) / num_rows}};
}

// Pages of one KV head by address. Those in the middle, whose tokens were dropped, are absent.
struct PageTable {
  std::span<std::byte* const> sink;    // pages 0 .. sink.size()-1
  std::span<std::byte* const> recent;  // pages recent_first .. ; recent_first >= sink.size()
  int64_t recent_first = 0;
};

// Of all pages of a head those of `sink` tokens, and those from that of token `recent_begin` on.
inline PageTable TableOf(std::span<std::byte* const> pages, int64_t page_tokens, int64_t sink, int64_t recent_begin) {
  const int64_t num_sink = (sink + page_tokens - 1) / page_tokens;
  const int64_t first = std::max(num_sink, recent_begin / page_tokens);
  return {.sink = pages.first(std::min(pages.size(), static_cast<size_t>(num_sink))),
          .recent = static_cast<size_t>(first) < pages.size() ? pages.subspan(static_cast<size_t>(first))
                                                              : std::span<std::byte* const>{},
          .recent_first = first};
}

// One KV head of a sequence of its own.
struct TestHead {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_pos = 0;
  KvLayout layout = {};
  PageTable pages = {};
  int64_t aged_begin = 0;
  int64_t aged_end = 0;
  int64_t sink = 0;
  int64_t recent = kNoLimit;
  int64_t sink_reach = kNoLimit;
  int64_t sink_pos_limit = kNoLimit;
};

// The step of a layer with one KV head per sequence: `heads`, whose rows follow each other.
class HeadsStep {
 public:
  explicit HeadsStep(std::span<const TestHead> heads) {
    for (const TestHead& head : heads) Add(head);
    step_.num_layers = 1;
    step_.num_kv_heads = 1;
    step_.sequences = rows_;
    step_.heads = heads_;
    step_.pages = numbers_;
    // Whatever a backend knows of tables is of another step.
    changed_heads_.resize(heads_.size());
    changed_pages_.resize(numbers_.size());
    std::iota(changed_heads_.begin(), changed_heads_.end(), 0u);
    std::iota(changed_pages_.begin(), changed_pages_.end(), 0u);
    step_.changed_heads = changed_heads_;
    step_.changed_pages = changed_pages_;
    for (PageSpace& space : spaces_) space.extents = addresses_;
    step_.spaces = spaces_;
  }
  HeadsStep(const HeadsStep&) = delete;

  const KvStep& step() const { return step_; }

  // Tokens [begin, end) of the first head are to be folded into `state`, [2, D] f32 in the backend's memory.
  void Fold(int64_t begin, int64_t end, float* state) {
    state_ = reinterpret_cast<std::byte*>(state);
    step_.states = static_cast<int32_t>(spaces_.size());
    spaces_.push_back({.layout = {}, .page_bytes = 64, .extent_shift = 0, .extents = {&state_, 1}});
    step_.spaces = spaces_;
    StepHead& head = heads_.front();
    head.state = 0;
    head.fold_from = begin;
    head.fold_after = rows_.front().first_pos + rows_.front().num_rows - end;
  }

 private:
  void Add(const TestHead& head) {
    rows_.push_back({.first_row = head.first_row,
                     .num_rows = head.num_rows,
                     .first_pos = head.first_pos,
                     .first_head = static_cast<uint32_t>(heads_.size())});
    KvLayout aged = head.layout;
    aged.format = KvFormat::kQ4;
    const auto space = static_cast<int32_t>(spaces_.size());
    spaces_.push_back({.layout = head.layout});
    spaces_.push_back({.layout = aged});
    heads_.push_back({.mask = {.sink = head.sink,
                               .recent = head.recent,
                               .sink_reach = head.sink_reach,
                               .sink_pos_limit = head.sink_pos_limit},
                      .table = static_cast<uint32_t>(numbers_.size()),
                      .sink_pages = static_cast<int64_t>(head.pages.sink.size()),
                      .ring_first = head.pages.recent_first,
                      .newest = space,
                      .aged = head.aged_begin < head.aged_end ? space + 1 : -1,
                      .aged_begin = head.aged_begin,
                      .aged_end = head.aged_end});
    for (const std::span<std::byte* const> run : {head.pages.sink, head.pages.recent}) {
      for (std::byte* page : run) {
        numbers_.push_back(static_cast<uint32_t>(addresses_.size()));
        addresses_.push_back(page);
      }
    }
  }

  std::vector<StepRows> rows_;
  std::vector<StepHead> heads_;
  std::vector<uint32_t> numbers_;
  std::vector<uint32_t> changed_heads_;
  std::vector<uint32_t> changed_pages_;
  std::vector<std::byte*> addresses_;  // each page is an extent of its own
  std::vector<PageSpace> spaces_;
  std::byte* state_ = nullptr;
  KvStep step_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_HEAD_PAGES_H_
