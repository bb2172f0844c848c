// How heads of a layer share their budgets by score, in whole pages [adakv]: so that however they share, the layer's
// pages are as many as if none did, at every length, and a step can be planned before anything is scored.
#ifndef HEADWISE_BACKEND_PAGE_SHARES_H_
#define HEADWISE_BACKEND_PAGE_SHARES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace headwise {

// Of heads that may each keep `places` tokens of `num_tokens` that may go.
struct PageShareArgs {
  std::span<const int64_t> num_best;  // by head: how many of all heads' highest scores it has; sum: places * heads
  int64_t places = 0;
  int64_t num_tokens = 0;
  int64_t page_tokens = 0;  // P
  double floor = 0;         // share of `places` that does not depend on scores
};

// Pages that each head gains beside its own, below 0 where it gives them up; 0 in all. AdaKV gives a head floor *
// places
// + (1 - floor) * num_best tokens [adakv algorithm 1]: x pages beside `places`. Every head begins with none of its
// whole pages, and they go out one at a time to the head that is furthest below its x, the lower of equal ones, as long
// as it has tokens for a page: of all ways to share them, that of the least squared distance from the x.
std::vector<int64_t> GainedPages(const PageShareArgs& args);

// Heads that give up pages have `num_pages` and gave up their last: which page of which head each page of a head that
// gained is, body(from_head, from_page, to_head, to_page), in order of both. Takes no memory.
template <typename Body>
void ForGivenPages(std::span<const int32_t> gained, int64_t num_pages, const Body& body) {
  size_t from = 0;
  int64_t taken = 0;
  for (size_t to = 0; to < gained.size(); ++to) {
    for (int64_t i = 0; i < gained[to]; ++i, ++taken) {
      while (from < gained.size() && taken >= -int64_t{gained[from]}) {
        ++from;
        taken = 0;
      }
      if (from == gained.size()) return;
      body(static_cast<int64_t>(from), num_pages + gained[from] + taken, static_cast<int64_t>(to), num_pages + i);
    }
  }
}

}  // namespace headwise

#endif  // HEADWISE_BACKEND_PAGE_SHARES_H_
