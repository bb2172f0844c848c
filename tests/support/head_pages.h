// Tests that drive one KV head without an engine, on backends that compute on host memory.
#ifndef HEADWISE_TESTS_SUPPORT_HEAD_PAGES_H_
#define HEADWISE_TESTS_SUPPORT_HEAD_PAGES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops.h"

namespace headwise {

// `values` as [num_rows, what remains] f32.
inline TensorView ViewOf(std::vector<float>& values, int64_t num_rows) {
  return {
      .data = values.data(), .dtype = DType::kF32, .shape = {num_rows, static_cast<int64_t>(values.size()) / num_rows}};
}

// Of all pages of a head those of `sink` tokens, and those from that of token `recent_begin` on.
inline PageTable TableOf(std::span<std::byte* const> pages, int64_t page_tokens, int64_t sink, int64_t recent_begin) {
  const int64_t num_sink = (sink + page_tokens - 1) / page_tokens;
  const int64_t first = std::max(num_sink, recent_begin / page_tokens);
  return {.sink = pages.first(std::min(pages.size(), static_cast<size_t>(num_sink))),
          .recent = static_cast<size_t>(first) < pages.size() ? pages.subspan(static_cast<size_t>(first))
                                                              : std::span<std::byte* const>{},
          .recent_first = first};
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_HEAD_PAGES_H_
