#include "backend/page_shares.h"

#include <cstddef>

namespace headwise {

std::vector<int64_t> GainedPages(const PageShareArgs& args) {
  const int64_t own = args.places / args.page_tokens;
  const int64_t most = (args.num_tokens - args.places) / args.page_tokens;
  std::vector<double> asked;
  for (const int64_t num_best : args.num_best) {
    asked.push_back((1 - args.floor) * static_cast<double>(num_best - args.places) /
                    static_cast<double>(args.page_tokens));
  }
  std::vector<int64_t> gained(asked.size(), -own);
  for (int64_t i = 0; i < own * static_cast<int64_t>(asked.size()); ++i) {
    size_t next = asked.size();
    double furthest = 0;
    for (size_t head = 0; head < asked.size(); ++head) {
      if (gained[head] >= most) continue;
      const double below = asked[head] - static_cast<double>(gained[head]);
      if (next < asked.size() && below <= furthest) continue;
      next = head;
      furthest = below;
    }
    ++gained[next];
  }
  return gained;
}

}  // namespace headwise
