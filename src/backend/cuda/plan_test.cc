// How attention and products are cut and dealt on a device: functions of host and device, looked at on the host. Every
// key and every slice exactly once, blocks of equal cost, and cuts that do not depend on who shares the step.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "backend/cuda/attention_cut.h"
#include "backend/cuda/decode_plan.h"
#include "backend/cuda/slice_runs.h"

namespace headwise::cuda {
namespace {

KeyMask RandomMask(std::mt19937_64& rng) {
  KeyMask mask;
  const auto below = [&](uint64_t end) { return static_cast<int64_t>(rng() % end); };
  if (below(3) == 0) return mask;
  mask.sink = below(3) * below(100);
  mask.recent = 1 + below(600);
  if (below(3) == 0) mask.sink_reach = 1 + below(1000);
  if (below(3) == 0) mask.sink_pos_limit = mask.sink + mask.recent - 1;
  return mask;
}

std::set<int64_t> KeysOf(const KeyMask& mask, int64_t first, int64_t last) {
  std::set<int64_t> keys;
  for (int64_t t = first; t <= last; ++t) {
    for (int64_t j = 0; j <= t; ++j) {
      if (mask.Reads(t, j)) keys.insert(j);
    }
  }
  return keys;
}

TEST(AttentionCut, AWindowHoldsEveryKeyThatIsReadOnce) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 300; ++i) {
    const KeyMask mask = RandomMask(rng);
    const auto first = static_cast<int64_t>(rng() % 900);
    const auto last = first + static_cast<int64_t>(rng() % 40);
    const KeyWindow window = WindowOf(mask, first, last);
    std::set<int64_t> held;
    for (int64_t key = 0; key < window.num_keys(); ++key) {
      ASSERT_TRUE(held.insert(window.PosOf(key)).second) << "case " << i;
      ASSERT_LE(window.PosOf(key), last);
    }
    for (const int64_t key : KeysOf(mask, first, last))
      ASSERT_TRUE(held.contains(key)) << "case " << i << " key " << key;
  }
}

TEST(AttentionCut, PiecesCoverTheKeysAndManyRowsAreNotCut) {
  std::mt19937_64 rng(2);
  for (int i = 0; i < 300; ++i) {
    const KeyMask mask = RandomMask(rng);
    const auto first = static_cast<int64_t>(rng() % 300000);
    const auto num_rows = 1 + static_cast<int64_t>(rng() % 40);
    const AttentionCut cut = CutOf(mask, first, num_rows, 4);
    const int64_t num_keys = WindowOf(mask, first, first + num_rows - 1).num_keys();
    ASSERT_EQ(cut.num_tiles, (num_rows * 4 + 15) / 16);
    ASSERT_LE(cut.num_pieces, kMaxPieces);
    ASSERT_GE(cut.num_pieces * cut.piece_keys, num_keys);
    ASSERT_LT((cut.num_pieces - 1) * cut.piece_keys, num_keys);
    if (num_rows > kMaxCutRows) {
      ASSERT_EQ(cut.num_pieces, 1);
    }
  }
}

TEST(DecodePlan, VisitsAreThePagesThatAQueryReads) {
  std::mt19937_64 rng(3);
  for (int i = 0; i < 300; ++i) {
    const KeyMask mask = RandomMask(rng);
    const auto pos = static_cast<int64_t>(rng() % 2000);
    const HeadVisits visits = VisitsOf(mask.KeysOf(pos), 32);
    std::set<int64_t> expected_sinks, expected_recent, sinks, recent;
    for (const int64_t key : KeysOf(mask, pos, pos))
      (key < mask.sink ? expected_sinks : expected_recent).insert(key / 32);
    for (int32_t visit = 0; visit < visits.num_visits; ++visit) {
      (visit < visits.num_sink ? sinks : recent).insert(visits.PageOf(visit));
    }
    ASSERT_EQ(sinks, expected_sinks) << "case " << i;
    ASSERT_EQ(recent, expected_recent) << "case " << i;
    ASSERT_EQ(sinks.size() + recent.size(), static_cast<size_t>(visits.num_visits));
  }
}

constexpr int64_t kBlocks = 132;

// A layer of full heads behind so many tokens.
LayerWork WorkOfFull(const std::vector<int64_t>& positions) {
  int64_t num_visits = 0;
  for (const int64_t pos : positions) num_visits += VisitsOf(KeyMask{}.KeysOf(pos), 64).num_visits;
  return WorkOfLayer(num_visits, std::ssize(positions), kBlocks);
}

// Of a sequence each.
std::vector<HeadPlan> PlansOf(const std::vector<int64_t>& positions, int64_t& cost) {
  std::vector<HeadPlan> plans;
  cost = 0;
  for (const int64_t pos : positions) {
    plans.push_back(PlanHead({}, pos, 64, WorkOfFull({pos})));
    plans.back().cost_before = static_cast<int32_t>(cost);
    cost += plans.back().cost();
  }
  return plans;
}

TEST(DecodePlan, RunsHoldEveryPieceOnceAndCostTheSame) {
  std::mt19937_64 rng(4);
  for (int i = 0; i < 100; ++i) {
    std::vector<int64_t> positions(1 + rng() % 40);
    for (int64_t& pos : positions) pos = static_cast<int64_t>(rng() % (i % 2 == 0 ? 2000 : 2000000));
    int64_t cost = 0;
    const std::vector<HeadPlan> plans = PlansOf(positions, cost);
    const auto num_heads = static_cast<int32_t>(plans.size());
    std::vector<int> visited(plans.size());
    int64_t largest_piece = 0;
    for (const HeadPlan& plan : plans) {
      largest_piece = std::max(largest_piece, CeilDiv(plan.visits.num_visits, plan.num_pieces) + kPieceCost);
    }
    for (int64_t block = 0; block < kBlocks; ++block) {
      RunStart at = RunFrom(plans.data(), num_heads, cost * block / kBlocks);
      RunStart end = RunFrom(plans.data(), num_heads, cost * (block + 1) / kBlocks);
      if (block + 1 == kBlocks) end = {num_heads, 0};
      int64_t run_cost = 0;
      while (at.head < end.head || (at.head == end.head && at.piece < end.piece)) {
        const HeadPlan& plan = plans[static_cast<size_t>(at.head)];
        const int32_t last = at.head < end.head ? plan.num_pieces : end.piece;
        for (; at.piece < last; ++at.piece) {
          ASSERT_EQ(visited[static_cast<size_t>(at.head)]++, at.piece);
          run_cost += plan.BeginOf(at.piece + 1) - plan.BeginOf(at.piece) + kPieceCost;
        }
        ++at.head;
        at.piece = 0;
      }
      ASSERT_LE(run_cost, cost / kBlocks + 2 * largest_piece) << "block " << block;
    }
    for (size_t head = 0; head < plans.size(); ++head) ASSERT_EQ(visited[head], plans[head].num_pieces);
  }
}

// Pages that have aged once, others twice, in the order of visits.
TEST(DecodePlan, PartsOfVisits) {
  std::mt19937_64 rng(5);
  for (int i = 0; i < 300; ++i) {
    const auto pos = static_cast<int64_t>(rng() % 3000);
    const HeadVisits visits = VisitsOf(RandomMask(rng).KeysOf(pos), 64);
    const auto aged_begin = static_cast<int64_t>(rng() % 10);
    const int64_t aged_end = aged_begin + static_cast<int64_t>(rng() % 40);
    const VisitParts parts = PartsOf(visits, aged_begin, aged_end);
    int32_t num_parts = 0;
    for (int32_t visit = 0; visit < visits.num_visits; ++visit) {
      ASSERT_EQ(parts.FirstOf(visit), num_parts) << "case " << i;
      const int64_t page = visits.PageOf(visit);
      const bool is_aged = page >= aged_begin && page < aged_end;
      for (int32_t half = is_aged ? -1 : 0; half < (is_aged ? 0 : 2); ++half) {
        const VisitParts::Part part = parts.PartOf(num_parts++);
        ASSERT_EQ(part.visit, visit) << "case " << i;
        ASSERT_EQ(part.half, half) << "case " << i;
      }
    }
    ASSERT_EQ(parts.FirstOf(visits.num_visits), num_parts) << "case " << i;
  }
}

TEST(DecodePlan, PiecesOfAHeadAreAsLongAsEachOther) {
  for (const int64_t pos : {int64_t{0}, int64_t{767}, int64_t{768}, int64_t{5000}, int64_t{131072}, int64_t{7000000}}) {
    const HeadPlan plan = PlanHead({}, pos, 64, WorkOfFull(std::vector<int64_t>(8, pos)));
    ASSERT_GT(plan.num_pieces, 0);
    EXPECT_EQ(plan.BeginOf(0), 0);
    EXPECT_EQ(plan.BeginOf(plan.num_pieces), plan.visits.num_visits);
    for (int32_t piece = 0; piece < plan.num_pieces; ++piece) {
      const int32_t num_visits = plan.BeginOf(piece + 1) - plan.BeginOf(piece);
      EXPECT_GE(num_visits, plan.visits.num_visits / plan.num_pieces) << pos;
      EXPECT_LE(num_visits, CeilDiv(plan.visits.num_visits, plan.num_pieces)) << pos;
    }
  }
}

// One piece for each block, or two or three where one would be long.
TEST(DecodePlan, ALayerHasAFewPiecesForEachBlock) {
  struct Layer {
    int64_t num_heads, pos;
    int32_t num_pieces;  // of a head
  };
  for (const Layer& layer :
       {Layer{8, 4096, 13}, Layer{32, 2048, 3}, Layer{2, 32768, 64}, Layer{4, 32768, 32}, Layer{8, 32768, 16},
        Layer{8, 131072, 49}, Layer{2, 131072, 64}, Layer{1, 131072, 128}, Layer{400, 131072, 1}}) {
    const HeadPlan plan =
        PlanHead({}, layer.pos, 64, WorkOfFull(std::vector<int64_t>(static_cast<size_t>(layer.num_heads), layer.pos)));
    EXPECT_EQ(plan.num_pieces, layer.num_pieces) << layer.num_heads << " of " << layer.pos;
    EXPECT_LE(plan.num_pieces * layer.num_heads, std::max(kPiecesOfBlock * kBlocks, layer.num_heads));
    EXPECT_LE(plan.num_pieces, MaxPieces(plan.visits.num_visits, 64));
  }
}

// The pieces of heads that are all as long go to a block each.
TEST(DecodePlan, NoBlockHasTwoPiecesOfASequenceAlone) {
  for (const size_t num_heads : {1, 2, 4, 8, 16, 20, 24, 32, 40, 48}) {
    for (int64_t num_pages = 13; num_pages < 200; ++num_pages) {
      const std::vector<int64_t> positions(num_heads, num_pages * 64 - 1);
      const LayerWork layer = WorkOfFull(positions);
      if (CeilDiv(layer.cost, kBlocks) * 64 > kMaxOnlyKeys) continue;
      std::vector<HeadPlan> plans(num_heads, PlanHead({}, positions[0], 64, layer));
      int64_t cost = 0;
      for (HeadPlan& plan : plans) {
        plan.cost_before = static_cast<int32_t>(cost);
        cost += plan.cost();
      }
      if (plans[0].num_pieces == 1) continue;
      const auto pieces_before = [&](int64_t block) {
        const RunStart run = RunFrom(plans.data(), static_cast<int32_t>(num_heads), cost * block / kBlocks);
        return block == kBlocks ? static_cast<int64_t>(num_heads) * plans[0].num_pieces
                                : int64_t{run.head} * plans[0].num_pieces + run.piece;
      };
      for (int64_t block = 0; block < kBlocks; ++block) {
        ASSERT_LE(pieces_before(block + 1) - pieces_before(block), 1) << num_heads << " heads of " << num_pages;
      }
    }
  }
}

// 17 pages among heads of which a block has 9.
TEST(DecodePlan, AHeadOfAlmostTwoPartsIsTwoPieces) {
  const LayerWork layer = WorkOfFull({32767, 16383, 8191, 4095, 2047, 1087, 511, 319});
  EXPECT_EQ(PlanHead({}, 1087, 64, layer).num_pieces, 2);
  EXPECT_EQ(PlanHead({}, 767, 64, layer).num_pieces, 1);
}

TEST(SliceRuns, BlocksHaveEverySliceOnceAndSumsAPlaceEach) {
  std::mt19937 random(5);
  const auto between = [&](int first, int last) { return std::uniform_int_distribution<int>(first, last)(random); };
  for (int i = 0; i < 300; ++i) {
    const int most = between(1, 264);
    const SliceRuns runs = RunsFor(between(1, 500), between(1, 120), most);
    ASSERT_LE(runs.num_blocks(), std::min(most, runs.num_slices()));
    ASSERT_GT(runs.num_blocks(), 0);
    const int most_of_tile = MostBlocksOfTile(runs.slices_of_tile, runs.length);
    // Nobody has more than a twenty-fifth, rounded up, above an equal share among all.
    const int share = (runs.num_slices() + most - 1) / most;
    std::set<int> places;
    EXPECT_EQ(runs.Begin(0), 0);
    EXPECT_EQ(runs.Begin(runs.num_blocks()), runs.num_slices());
    for (int block = 0; block < runs.num_blocks(); ++block) {
      const int begin = runs.Begin(block);
      const int end = runs.Begin(block + 1);
      ASSERT_GT(end, begin);
      EXPECT_LE(end - begin, share + share / 25);
      for (int slice = begin; slice < end; ++slice) ASSERT_EQ(runs.BlockOf(slice), block);
      for (int tile = begin / runs.slices_of_tile; tile * runs.slices_of_tile < end; ++tile) {
        EXPECT_LE(runs.FirstBlockOf(tile), block);
        EXPECT_GE(runs.LastBlockOf(tile), block);
        EXPECT_LE(runs.LastBlockOf(tile) - runs.FirstBlockOf(tile) + 1, most_of_tile);
        if (runs.FirstBlockOf(tile) == runs.LastBlockOf(tile)) continue;
        EXPECT_TRUE(places.insert(runs.PlaceOf(block, tile)).second);
        EXPECT_LT(runs.PlaceOf(block, tile), 2 * runs.num_blocks());
      }
    }
  }
}

// Matrices of Llama-3-8B on 132 multiprocessors, slices of 128: output and down, of 64 tiles, have two blocks a tile.
TEST(SliceRuns, FewBlocksShareATile) {
  for (const int slices : {32, 112}) {
    const SliceRuns runs = RunsFor(64, slices, 132);
    EXPECT_EQ(runs.num_blocks(), 128);
    for (int tile = 0; tile < runs.num_tiles; ++tile) EXPECT_EQ(runs.LastBlockOf(tile) - runs.FirstBlockOf(tile), 1);
  }
}

}  // namespace
}  // namespace headwise::cuda
