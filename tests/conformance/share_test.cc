// Heads of a layer that share their budgets by score [adakv]: how pages are shared, against all ways to share them, and
// what is kept, against a simulation in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <tuple>

#include "backend/page_shares.h"
#include "support/backends.h"
#include "support/random_attention.h"
#include "support/selection_simulation.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

// By dynamic programming: whole numbers in [least, most] whose sum is 0, closest to `asked` in squares.
std::vector<int64_t> Closest(const std::vector<double>& asked, int64_t least, int64_t most) {
  const auto num_heads = static_cast<int64_t>(asked.size());
  // cost[head][sum - num_heads * least], and what the head took there.
  const int64_t num_sums = num_heads * (most - least) + 1;
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> cost(asked.size() + 1, std::vector<double>(static_cast<size_t>(num_sums), kNone));
  std::vector<std::vector<int64_t>> took(asked.size(), std::vector<int64_t>(static_cast<size_t>(num_sums)));
  cost[0][0] = 0;
  for (size_t head = 0; head < asked.size(); ++head) {
    for (int64_t sum = 0; sum < num_sums; ++sum) {
      for (int64_t pages = least; pages <= most && sum + pages - least < num_sums; ++pages) {
        const double off = asked[head] - static_cast<double>(pages);
        const double total = cost[head][static_cast<size_t>(sum)] + off * off;
        const auto at = static_cast<size_t>(sum + pages - least);
        if (total >= cost[head + 1][at]) continue;
        cost[head + 1][at] = total;
        took[head][at] = pages;
      }
    }
  }
  std::vector<int64_t> pages(asked.size());
  int64_t sum = -num_heads * least;
  for (size_t head = asked.size(); head-- > 0;) {
    pages[head] = took[head][static_cast<size_t>(sum)];
    sum -= pages[head] - least;
  }
  return pages;
}

TEST(PageShares, AreTheClosestToWhatThePaperGives) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 300; ++i) {
    const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
    std::vector<int64_t> num_best(static_cast<size_t>(1 + below(6)));
    PageShareArgs args{.num_best = {}, .places = 1 + below(200), .num_tokens = 0, .page_tokens = 16, .floor = 0.0};
    args.num_tokens = args.places + below(200);
    args.floor = 0.25 * static_cast<double>(below(5));
    const auto num_heads = static_cast<int64_t>(num_best.size());
    for (int64_t left = args.places * num_heads; left > 0;) {
      const int64_t head = below(num_heads);
      const int64_t more = std::min({left, 1 + below(40), args.num_tokens - num_best[static_cast<size_t>(head)]});
      num_best[static_cast<size_t>(head)] += more;
      left -= more;
    }
    args.num_best = num_best;
    std::vector<double> asked;
    double cost = 0, least_cost = 0;
    const std::vector<int64_t> gained = GainedPages(args);
    for (const int64_t best : num_best) {
      asked.push_back((args.floor * static_cast<double>(args.places) + (1 - args.floor) * static_cast<double>(best) -
                       static_cast<double>(args.places)) /
                      16);
    }
    const std::vector<int64_t> closest = Closest(asked, -(args.places / 16), (args.num_tokens - args.places) / 16);
    for (size_t head = 0; head < asked.size(); ++head) {
      cost += std::pow(asked[head] - static_cast<double>(gained[head]), 2);
      least_cost += std::pow(asked[head] - static_cast<double>(closest[head]), 2);
      EXPECT_GE(args.places + 16 * gained[head], 0);
      EXPECT_LE(args.places + 16 * gained[head], args.num_tokens);
    }
    EXPECT_EQ(std::accumulate(gained.begin(), gained.end(), int64_t{0}), 0);
    EXPECT_NEAR(cost, least_cost, 1e-9) << "case " << i;
  }
}

TEST(PageShares, PagesGoFromHeadToHeadInOrder) {
  const std::vector<int32_t> gained = {2, -1, 0, -3, 1, 1};
  std::vector<std::vector<int64_t>> moves;
  ForGivenPages(gained, 10, [&](int64_t from, int64_t from_page, int64_t to, int64_t to_page) {
    moves.push_back({from, from_page, to, to_page});
  });
  EXPECT_EQ(moves, (std::vector<std::vector<int64_t>>{{1, 9, 0, 10}, {3, 7, 0, 11}, {3, 8, 4, 10}, {3, 9, 5, 10}}));
}

// Three heads, one page of places each. Two ask for half a page more and one for a page less: of the three pages two go
// to the heads that ask for more, and the third to the first of these.
TEST(PageShares, OfEqualOnesTheLowerGains) {
  const std::vector<int64_t> num_best = {24, 24, 0};
  EXPECT_EQ(GainedPages({.num_best = num_best, .places = 16, .num_tokens = 100, .page_tokens = 16, .floor = 0}),
            (std::vector<int64_t>{1, 0, -1}));
  const std::vector<int64_t> turned = {0, 24, 24};
  EXPECT_EQ(GainedPages({.num_best = turned, .places = 16, .num_tokens = 100, .page_tokens = 16, .floor = 0}),
            (std::vector<int64_t>{-1, 1, 0}));
}

// Heads that look at few tokens beside heads that look at many: these get more.
AttentionData UnevenData(const AttentionCase& test_case) {
  AttentionData data(test_case);
  const int64_t group = test_case.num_q_heads / test_case.num_kv_heads;
  for (size_t i = 0; i < data.q.size(); ++i) {
    const auto q_head = static_cast<int64_t>(i) / test_case.head_dim % test_case.num_q_heads;
    constexpr float kSharpness[] = {0.2f, 4.0f, 3.0f, 1.0f, 0.5f};
    data.q[i] *= kSharpness[q_head / group % 5];
  }
  return data;
}

AttentionCase RandomCase(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  AttentionCase test_case{.num_tokens = 150 + below(100), .num_q_heads = 12, .seed = seed};
  test_case.num_kv_heads = seed % 3 == 0 ? 6 : seed % 3 == 1 ? 4 : 2;
  test_case.page_tokens = seed % 4 == 3 ? 32 : 16;
  HeadRule rule = HeadRule::Stream(below(2) * below(10), 20 + below(80));
  rule.start = RuleStart::kEndOfPrompt;
  rule.select = {.kind = TokenSelector::Kind::kAdaKv, .window = 1 + below(30), .kernel = 1 + 2 * below(4)};
  rule.select.floor = 0.25 * static_cast<double>(below(4));
  if (below(2) == 0) rule.select.pooling = TokenSelector::Pooling::kMean;
  const SequenceLimits limits{.prompt_tokens = 60 + below(90), .max_tokens = 400};
  test_case.rules.assign(static_cast<size_t>(test_case.num_kv_heads), ResolveRule(rule, limits));
  // Others between them share nothing.
  if (test_case.num_kv_heads > 2) test_case.rules[1] = ResolveRule(HeadRule::Full(), limits);
  if (test_case.num_kv_heads > 4) test_case.rules[3] = ResolveRule(HeadRule::Stream(5, 40), limits);
  return test_case;
}

std::vector<int32_t> Kept(const KvCache& cache, int64_t kv_head) {
  std::vector<int32_t> kept = cache.KeptPositions(0, kv_head).value();
  std::sort(kept.begin(), kept.end());
  return kept;
}

// What the paper says, heads' budgets brought to whole pages.
void CutLayer(const AttentionCase& test_case, std::deque<SelectionSimulation>& heads) {
  std::vector<size_t> sharing;
  std::vector<std::pair<double, size_t>> scores;
  int64_t num_tokens = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    if (!test_case.rules[h].SelectsByScore()) continue;
    for (const auto& [score, position] : heads[h].Pooled()) scores.push_back({score, sharing.size()});
    num_tokens = static_cast<int64_t>(heads[h].Pooled().size());
    sharing.push_back(h);
  }
  const ResolvedRule& rule = test_case.rules[sharing.front()];
  const auto num_sharing = static_cast<int64_t>(sharing.size());
  const int64_t budget = rule.sink + rule.recent;
  const int64_t places = budget - rule.sink - std::min(rule.select.window, rule.recent);
  if (rule.holds_from <= budget) return;
  std::stable_sort(scores.begin(), scores.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<double> asked(sharing.size());
  for (int64_t i = 0; i < places * num_sharing; ++i)
    asked[scores[static_cast<size_t>(i)].second] += 1 - rule.select.floor;
  const auto page_tokens = static_cast<double>(test_case.page_tokens);
  for (double& pages : asked) pages = (pages - (1 - rule.select.floor) * static_cast<double>(places)) / page_tokens;
  const std::vector<int64_t> pages =
      Closest(asked, -(places / test_case.page_tokens), (num_tokens - places) / test_case.page_tokens);
  for (size_t i = 0; i < sharing.size(); ++i) {
    heads[sharing[i]].CutTo(static_cast<size_t>(budget + pages[i] * test_case.page_tokens));
  }
}

// The pages of the layer are at every step as many as if nothing were shared.
void CheckPages(const KvCache& cache, int64_t& most_shared) {
  int64_t num_pages = 0, num_planned = 0;
  for (int64_t h = 0; h < cache.num_kv_heads(); ++h) {
    ResolvedRule rule = cache.rule(0, h);
    ASSERT_EQ(cache.NumPages(0, h).total(), KvPages(rule, cache.num_tokens(), cache.page_tokens()).total());
    num_pages += cache.NumPages(0, h).total();
    most_shared = std::max(most_shared, rule.shared);
    rule.shared = 0;
    num_planned += KvPages(rule, cache.num_tokens(), cache.page_tokens()).total();
  }
  ASSERT_EQ(num_pages, num_planned) << "at " << cache.num_tokens();
}

// How a text went beside a simulation of what the paper says.
struct Compared {
  int64_t most_shared = 0;  // tokens that a head gained
  bool is_tied = false;     // other tokens were kept, for rounding
  double worst = 0;         // of the outputs of heads that share, where they kept the same
};

void CompareWithPaper(Backend& backend, const AttentionCase& test_case, const AttentionData& data,
                      const std::vector<int64_t>& chunks, Compared& compared) {
  std::deque<SelectionSimulation> heads;
  for (int64_t h = 0; h < test_case.num_kv_heads; ++h) heads.emplace_back(test_case, data, h);
  std::vector<double> expected(data.q.size());
  int64_t done = 0;
  bool& is_tied = compared.is_tied;
  const std::vector<float> out =
      RunAttention(backend, test_case, data, chunks, [&](const KvCache& cache, const KvPools&) {
        CheckPages(cache, compared.most_shared);
        for (size_t h = 0; h < heads.size(); ++h) {
          if (test_case.rules[h].SelectsByScore()) heads[h].Step(done, cache.num_tokens(), expected);
        }
        done = cache.num_tokens();
        if (done == test_case.rules[0].holds_from) CutLayer(test_case, heads);
        for (size_t h = 0; h < heads.size() && !is_tied; ++h) {
          if (!test_case.rules[h].SelectsByScore()) continue;
          const std::vector<int32_t> kept = Kept(cache, static_cast<int64_t>(h));
          ASSERT_EQ(kept.size(), heads[h].kept().size()) << "head " << h << " at " << done;
          is_tied = !std::equal(kept.begin(), kept.end(), heads[h].kept().begin());
        }
      });
  const int64_t group = test_case.num_q_heads / test_case.num_kv_heads;
  for (size_t i = 0; i < out.size() && !is_tied; ++i) {
    const auto q_head = static_cast<int64_t>(i) / test_case.head_dim % test_case.num_q_heads;
    if (!test_case.rules[static_cast<size_t>(q_head / group)].SelectsByScore()) continue;
    compared.worst = Worse(compared.worst, out[i], expected[i]);
  }
}

TEST(AdaKv, TheReferenceKeepsWhatThePaperKeeps) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda does not select by score";
  const std::unique_ptr<Backend> ref = MakeRefBackend();
  int num_sharing = 0, num_tied = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    const AttentionCase test_case = RandomCase(seed);
    std::mt19937_64 rng(seed);
    const std::vector<int64_t> chunks = RandomChunks(rng, test_case, seed % 2 == 0 ? 7 : 90);
    Compared compared;
    CompareWithPaper(*ref, test_case, UnevenData(test_case), chunks, compared);
    num_sharing += compared.most_shared > 0 ? 1 : 0;
    num_tied += compared.is_tied ? 1 : 0;
    EXPECT_LE(compared.worst, AttentionTolerance(test_case.kv_formats, test_case.compute));
  }
  EXPECT_GE(num_sharing, 8);
  EXPECT_LE(num_tied, 1);
}

// Heads that share, all alike.
struct SharingLengths {
  int64_t num_tokens = 0;
  int64_t prompt_tokens = 0;
  int64_t budget = 0;
  int64_t window = 0;
};

AttentionCase SharingCase(int64_t num_heads, const SharingLengths& lengths, uint64_t seed) {
  AttentionCase test_case{.num_tokens = lengths.num_tokens, .num_q_heads = num_heads, .num_kv_heads = num_heads};
  test_case.page_tokens = 16;
  test_case.seed = seed;
  HeadRule rule = HeadRule::Stream(0, lengths.budget);
  rule.start = RuleStart::kEndOfPrompt;
  rule.select = {.kind = TokenSelector::Kind::kAdaKv, .window = lengths.window, .kernel = 1};
  rule.select.floor = 0;
  const SequenceLimits limits{.prompt_tokens = lengths.prompt_tokens, .max_tokens = lengths.num_tokens};
  test_case.rules.assign(static_cast<size_t>(num_heads), ResolveRule(rule, limits));
  return test_case;
}

// Three heads look at one token each, one at all alike: it gets all pages but one that the others have beside what must
// stay, and has more than three times as many as it would have. Where the prompt is one step there was no room for them
// before.
TEST(AdaKv, AHeadMayGainMorePagesThanItKeeps) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda does not select by score";
  const AttentionCase test_case =
      SharingCase(4, {.num_tokens = 530, .prompt_tokens = 500, .budget = 98, .window = 2}, 5);
  AttentionData data(test_case);
  for (size_t i = 0; i < data.q.size(); ++i) {
    data.q[i] *= static_cast<int64_t>(i) / test_case.head_dim % 4 == 2 ? 0.05f : 20.0f;
  }
  for (const NamedBackend& named : AllBackends()) {
    SCOPED_TRACE(named.name);
    Compared compared;
    CompareWithPaper(*named.backend, test_case, data, {500, 1, 29}, compared);
    EXPECT_EQ(compared.most_shared, 17 * 16);
    EXPECT_FALSE(compared.is_tied);
    EXPECT_LE(compared.worst, 4 * AttentionTolerance(test_case.kv_formats, test_case.compute));
  }
}

// Heads 0 and 1 are the same, so that each of their tokens has a twin: of two that are cut apart the lower head's goes,
// and where that makes a page, the other head has it. Head 2 decides which are.
TEST(AdaKv, OfEqualTokensThatOfTheLowerHeadGoes) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda does not select by score";
  int num_of_higher = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const AttentionCase test_case =
        SharingCase(3, {.num_tokens = 200, .prompt_tokens = 190, .budget = 48, .window = 16}, seed);
    AttentionData data(test_case);
    for (size_t i = 0; i < data.q.size(); ++i) {
      if (static_cast<int64_t>(i) / test_case.head_dim % 3 == 2) data.q[i] *= seed % 2 == 0 ? 0.5f : 1.5f;
    }
    for (std::vector<float>* values : {&data.q, &data.k, &data.v}) {
      for (size_t i = 0; i < values->size(); ++i) {
        if (static_cast<int64_t>(i) / test_case.head_dim % 3 == 1) (*values)[i] = (*values)[i - 64];
      }
    }
    std::vector<std::tuple<double, int64_t, int64_t>> tokens;  // score, position, head: who goes first
    std::vector<double> unused(data.q.size());
    for (int64_t h = 0; h < 3; ++h) {
      SelectionSimulation head(test_case, data, h);
      head.Step(0, 190, unused);
      for (const auto& [score, position] : head.Pooled()) tokens.emplace_back(score, position, h);
    }
    std::sort(tokens.begin(), tokens.end());
    std::vector<int64_t> num_best(3);
    for (size_t i = tokens.size() - 3 * 32; i < tokens.size(); ++i)
      ++num_best[static_cast<size_t>(std::get<2>(tokens[i]))];
    const std::vector<int64_t> gained =
        GainedPages({.num_best = num_best, .places = 32, .num_tokens = 190 - 16, .page_tokens = 16, .floor = 0});
    if (num_best[1] == num_best[0] || gained[1] == gained[0]) continue;
    ++num_of_higher;
    EXPECT_EQ(num_best[1], num_best[0] + 1);
    for (const NamedBackend& named : AllBackends()) {
      RunAttention(*named.backend, test_case, data, {190, 10}, [&](const KvCache& cache, const KvPools&) {
        if (cache.num_tokens() < 190) return;
        for (int64_t h = 0; h < 3; ++h) {
          EXPECT_EQ(cache.rule(0, h).shared, 16 * gained[static_cast<size_t>(h)]) << named.name << ", seed " << seed;
        }
      });
    }
  }
  EXPECT_GE(num_of_higher, 2);
}

TEST(AdaKv, EveryInstructionSetKeepsWhatTheReferenceKeeps) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda does not select by score";
  const std::unique_ptr<Backend> ref = MakeRefBackend();
  for (uint64_t seed = 30; seed < 42; ++seed) {
    AttentionCase test_case = RandomCase(seed);
    const KvFormat format = seed % 3 == 0 ? KvFormat::kQ8 : seed % 3 == 1 ? KvFormat::kF32 : KvFormat::kF16;
    test_case.kv_formats = {format, format};
    const AttentionData data = UnevenData(test_case);
    std::mt19937_64 rng(seed);
    const std::vector<int64_t> chunks = RandomChunks(rng, test_case, 90);
    const auto kept_by = [&](Backend& backend, std::vector<float>& out) {
      std::vector<std::vector<int32_t>> kept;
      out = RunAttention(backend, test_case, data, chunks, [&](const KvCache& cache, const KvPools&) {
        int64_t most_shared = 0;
        CheckPages(cache, most_shared);
        if (cache.num_tokens() != test_case.rules[0].holds_from) return;
        for (int64_t h = 0; h < test_case.num_kv_heads; ++h) {
          if (cache.rule(0, h).SelectsByScore()) kept.push_back(Kept(cache, h));
        }
      });
      return kept;
    };
    std::vector<float> expected_out, out;
    const std::vector<std::vector<int32_t>> expected = kept_by(*ref, expected_out);
    for (const NamedBackend& named : CpuBackends()) {
      const std::vector<std::vector<int32_t>> kept = kept_by(*named.backend, out);
      ASSERT_EQ(kept.size(), expected.size());
      size_t num_kept = 0, num_others = 0;
      for (size_t i = 0; i < kept.size(); ++i) {
        std::vector<int32_t> others;
        std::set_difference(kept[i].begin(), kept[i].end(), expected[i].begin(), expected[i].end(),
                            std::back_inserter(others));
        num_kept += kept[i].size();
        num_others += others.size();
      }
      // As in select_test.cc: rounding breaks ties, and codes of 8 bits have another log-sum-exp. A page more or less
      // is a page of others.
      const double share = format == KvFormat::kQ8 ? 0.1 : 0.02;
      ASSERT_LE(static_cast<double>(num_others), share * static_cast<double>(num_kept)) << named.name << ", " << seed;
      if (num_others > 0) continue;
      EXPECT_LE(MaxDifference(out, expected_out), AttentionTolerance(test_case.kv_formats, test_case.compute))
          << named.name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace headwise
