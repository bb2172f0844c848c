#include "kv/cache_step.h"

#include <algorithm>

#include "base/no_memory.h"

namespace headwise {

void CacheStep::Add(KvCache& cache) {
  HW_CHECK(cache.planned_tokens() > 0, "no step is planned");
  HW_CHECK(caches_.empty() || cache.num_layers() == caches_.front()->num_layers());
  const int64_t first_row = rows_.empty() ? 0 : rows_.back().first_row + rows_.back().num_rows;
  ReserveMore(rows_, 1);
  caches_.push_back(&cache);
  rows_.push_back(cache.Rows(first_row));
}

// By layer, whichever sequence they are of.
void CacheStep::GatherAges() {
  ages_.clear();
  age_ends_.clear();
  const bool none =
      std::all_of(caches_.begin(), caches_.end(), [](const KvCache* cache) { return cache->ages().empty(); });
  if (none) return;
  std::vector<LayerMove> moves;
  for (const KvCache* cache : caches_) moves.insert(moves.end(), cache->ages().begin(), cache->ages().end());
  std::stable_sort(moves.begin(), moves.end(),
                   [](const LayerMove& a, const LayerMove& b) { return a.layer_idx < b.layer_idx; });
  age_ends_.assign(static_cast<size_t>(step_.num_layers), 0);
  for (const LayerMove& move : moves) {
    ages_.push_back(move.move);
    age_ends_[static_cast<size_t>(move.layer_idx)] = static_cast<int64_t>(ages_.size());
  }
  for (size_t i = 1; i < age_ends_.size(); ++i) age_ends_[i] = std::max(age_ends_[i], age_ends_[i - 1]);
}

void CacheStep::GatherLayers() {
  const auto num_layers = static_cast<size_t>(step_.num_layers);
  compensates_.assign(num_layers, 0);
  selects_.assign(num_layers, 0);
  for (const KvCache* cache : caches_) {
    for (size_t i = 0; i < num_layers; ++i) {
      compensates_[i] |= cache->compensates()[i];
      selects_[i] |= cache->selects()[i];
    }
  }
}

void CacheStep::Begin(std::span<const TokenMark> marks) {
  HW_CHECK(!caches_.empty(), "a step of no sequence");
  copies_.clear();
  for (const KvCache* cache : caches_) copies_.insert(copies_.end(), cache->copies().begin(), cache->copies().end());
  KvTables& tables = *pools_.tables;
  pools_.set->GetSpaces(spaces_);
  step_.num_layers = caches_.front()->num_layers();
  step_.num_kv_heads = caches_.front()->num_kv_heads();
  GatherAges();
  GatherLayers();
  step_.sequences = rows_;
  step_.marks = marks;
  step_.heads = tables.heads.entries();
  step_.selections = tables.selections.entries();
  step_.pages = tables.pages.entries();
  step_.spaces = spaces_;
  step_.states = pools_.states->space();
  // Ops read step_ until Finish, when the tables note new changes: a copy.
  changed_heads_ = tables.heads.changes();
  changed_selections_ = tables.selections.changes();
  changed_pages_ = tables.pages.changes();
  step_.changed_heads = changed_heads_;
  step_.changed_selections = changed_selections_;
  step_.changed_pages = changed_pages_;
  step_.copies = copies_;
  step_.ages = ages_;
  step_.age_ends = age_ends_;
  gained_.clear();
  if (std::any_of(caches_.begin(), caches_.end(), [](const KvCache* cache) { return cache->SharesInStep(); })) {
    gained_.assign(static_cast<size_t>(step_.num_layers * step_.num_heads()), 0);
  }
  step_.gained = gained_;
  backend_->BeginStep(step_);
  // Only now: of a step that did not begin the next one has to tell.
  tables.heads.ForgetChanges();
  tables.selections.ForgetChanges();
  tables.pages.ForgetChanges();
  if (!copies_.empty()) backend_->CopyPages({.step = &step_});
}

void CacheStep::RunLayer(int64_t layer_idx, const CacheLayerArgs& args) {
  const bool compensates = compensates_[static_cast<size_t>(layer_idx)] != 0;
  const bool selects = selects_[static_cast<size_t>(layer_idx)] != 0;
  backend_->RopeThenAppendKv(args.ropes, {.step = &step_, .layer_idx = layer_idx, .k = args.k, .v = args.v});
  if (args.q.present()) {
    backend_->Attention({.step = &step_,
                         .layer_idx = layer_idx,
                         .q = args.q,
                         .q_sink = args.q_sink,
                         .out = args.out,
                         .lse = compensates || selects ? args.lse : TensorView{},
                         .alibi_slopes = args.alibi_slopes,
                         .sink_logits = args.sink_logits,
                         .num_q_heads = args.num_q_heads,
                         .scale = args.scale,
                         .score_cap = args.score_cap,
                         .compute = args.compute});
  }
  if (compensates) {
    backend_->Compensate({.step = &step_,
                          .layer_idx = layer_idx,
                          .q = args.q,
                          .out = args.out,
                          .lse = args.lse,
                          .alibi_slopes = args.alibi_slopes,
                          .num_q_heads = args.num_q_heads,
                          .scale = args.scale,
                          .score_cap = args.score_cap});
  }
  if (selects) {
    backend_->SelectKv({.step = &step_,
                        .layer_idx = layer_idx,
                        .q = args.q,
                        .lse = args.lse,
                        .q_ahead = args.q_ahead,
                        .num_q_heads = args.num_q_heads,
                        .scale = args.scale,
                        .score_cap = args.score_cap});
  }
  if (!step_.AgesOf(layer_idx).empty()) backend_->AgeKv({.step = &step_, .layer_idx = layer_idx});
}

void CacheStep::Finish() {
  // What heads came to share only the device knows.
  if (!gained_.empty() && !backend_->device().Wait().ok()) return Abandon();
  const auto num_heads = static_cast<size_t>(step_.num_layers * step_.num_kv_heads);
  for (size_t i = 0; i < caches_.size(); ++i) {
    caches_[i]->FinishStep(gained_.empty() ? std::span<const int32_t>()
                                           : std::span(gained_).subspan(i * num_heads, num_heads));
  }
  caches_.clear();
  rows_.clear();
}

void CacheStep::Abandon() {
  for (KvCache* cache : caches_) cache->AbandonStep();
  caches_.clear();
  rows_.clear();
}

}  // namespace headwise
