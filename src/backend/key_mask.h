// Which keys a query reads: the one place that says so, for rules, backends, kernels and tests. No std:: code: kernels
// of every instruction set include it, and a device may.
#ifndef HEADWISE_BACKEND_KEY_MASK_H_
#define HEADWISE_BACKEND_KEY_MASK_H_

#include <cstdint>

namespace headwise {

// Larger than any position; the sum of two does not overflow.
inline constexpr int64_t kNoLimit = INT64_MAX / 4;

// Two ranges of positions, either of which may be empty (begin >= end); the second begins where the first ends or
// later.
struct KeyRanges {
  int64_t sink_begin, sink_end;      // read with the query rotated at SinkPos, where heads count positions in the cache
  int64_t recent_begin, recent_end;  // read with the query at its position in the text
};

// The query at position t reads key j <= t when
//     j < sink and SinkPos(t) - j < sink_reach,   or   j >= sink and t - j < recent.
// That is all a kernel knows of rules. [streaming-llm §3.2, duo §2.1, moa §3.2, razor §3.3]
struct KeyMask {
  int64_t sink = 0;
  int64_t recent = kNoLimit;          // at least 1
  int64_t sink_reach = kNoLimit;      // a model's own window also hides sinks that are too far back
  int64_t sink_pos_limit = kNoLimit;  // where the query's position for sinks stops growing [streaming-llm §3.2]

  constexpr int64_t SinkPos(int64_t t) const { return t < sink_pos_limit ? t : sink_pos_limit; }
  constexpr bool Reads(int64_t t, int64_t j) const {
    return j <= t && (j < sink ? SinkPos(t) - j < sink_reach : t - j < recent);
  }
  constexpr int64_t SinkBegin(int64_t t) const {
    const int64_t begin = SinkPos(t) - sink_reach + 1;
    return begin > 0 ? begin : 0;
  }
  constexpr int64_t RecentBegin(int64_t t) const {
    const int64_t begin = t - recent + 1;
    return begin > sink ? begin : sink;
  }
  // All that the query at t reads.
  constexpr KeyRanges KeysOf(int64_t t) const {
    const int64_t sink_end = sink < t + 1 ? sink : t + 1;
    const int64_t sink_begin = SinkBegin(t) < sink_end ? SinkBegin(t) : sink_end;
    const int64_t recent_begin = RecentBegin(t);
    return {sink_begin, sink_end, recent_begin > sink_end ? recent_begin : sink_end, t + 1};
  }

  friend constexpr bool operator==(const KeyMask&, const KeyMask&) = default;
};

}  // namespace headwise

#endif  // HEADWISE_BACKEND_KEY_MASK_H_
