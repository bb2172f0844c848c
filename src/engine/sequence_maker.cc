#include "engine/sequence_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "kv/kv_bytes.h"
#include "kv/token_marks.h"
#include "model/rope.h"

namespace headwise {
namespace {

// What else heads of the two plans must have in common, in the words of an error.
std::string ForkCondition(const KvFormats& formats) {
  std::string text;
  if (formats.full != formats.bounded) {
    text += "; with two KV formats also heads that keep every token under both plans or under neither";
  }
  if (formats.full == KvFormat::kQ4 || formats.bounded == KvFormat::kQ4) {
    text += "; with a q4 cache also sinks that fill as many pages";
  }
  return text;
}

Status CheckLength(const char* name, int64_t num_tokens) {
  if (num_tokens >= 0 && num_tokens <= kMaxSequenceTokens) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("sequence: {} is {}, expected 0 to {}", name, num_tokens, kMaxSequenceTokens));
}

SequenceLimits LimitsOf(const SequenceOptions& options) {
  return {.prompt_tokens = options.prompt_tokens, .max_tokens = options.max_tokens};
}

// What goes on with the text, whatever the rules.
void CopyText(const Sequence& from, Sequence& to) {
  to.rope_frequencies = from.rope_frequencies;
  to.seen = from.seen;
  to.pending = from.pending;
}

}  // namespace

SequenceMaker::SequenceMaker(const ModelConfig& config, std::shared_ptr<KvMemory> memory, const EngineOptions& options)
    : config_(&config),
      memory_(std::move(memory)),
      step_tokens_(options.chunk_tokens),
      page_tokens_(options.page_tokens),
      is_batch_invariant_(options.batch_invariant),
      dense_plan_(std::make_shared<HeadPlan>(HeadPlan::Dense(config.shape()))),
      windows_(LayerWindowsOf(config)) {
  const size_t page_bytes = memory_->backend->PageBytes(
      {.head_dim = config.head_dim, .page_tokens = page_tokens_, .format = NewestFormat(memory_->formats.full)});
  const auto num_heads = static_cast<int64_t>(dense_plan_->rules.size());
  token_bytes_ = MultiplySizes(static_cast<int64_t>(page_bytes), num_heads) / page_tokens_;
}

std::shared_ptr<const HeadPlan> SequenceMaker::PlanOrDense(const std::shared_ptr<const HeadPlan>& plan) const {
  return plan == nullptr ? dense_plan_ : plan;
}

int64_t SequenceMaker::WorstCaseBytes(const HeadPlan& plan, const SequenceLimits& limits, int64_t step_tokens,
                                      int64_t most_tokens) const {
  const auto pages_in = [&](KvFormat format) {
    return PageSizesOf(*memory_->backend,
                       {.head_dim = config_->head_dim, .page_tokens = page_tokens_, .format = format});
  };
  return PeakKvBytes({.plan = &plan,
                      .limits = limits,
                      .most_tokens = most_tokens,
                      .windows = windows_,
                      .chunk_tokens = step_tokens,
                      .page_tokens = page_tokens_,
                      .full_pages = pages_in(memory_->formats.full),
                      .bounded_pages = pages_in(memory_->formats.bounded)});
}

Status SequenceMaker::CheckPlan(const HeadPlan& plan) const {
  HW_RETURN_IF_ERROR(ValidatePlan(plan, "plan"));
  HW_RETURN_IF_ERROR(CheckPlanFits(plan, config_->shape(), "plan"));
  HW_RETURN_IF_ERROR(CheckSelectors(plan));
  const bool has_learned = config_->positions == PositionKind::kLearned;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    if (windows_.At(layer_idx) == kNoLimit && !has_learned) continue;
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const HeadRule& rule = plan.At(layer_idx, kv_head);
      if (has_learned && rule.positions == Positions::kCache) {
        return Status::Unsupported(fmt::format(
            "plan: layer {}, KV head {}: positions in the cache cannot be had of a model that has learned its "
            "positions, which are part of keys",
            layer_idx, kv_head));
      }
      // The window drops sinks while the prompt is read; positions in the cache would want them back after it.
      const bool has_window = windows_.At(layer_idx) != kNoLimit;
      if (has_window && rule.positions == Positions::kCache && rule.start == RuleStart::kEndOfPrompt) {
        return Status::Unsupported(fmt::format(
            "plan: layer {}, KV head {}: positions in the cache from the end of the prompt cannot be combined with the "
            "layer's sliding window",
            layer_idx, kv_head));
      }
    }
  }
  return Status::Ok();
}

bool TakesFormats(const HeadRule& rule, const KvFormats& formats) {
  if (rule.ReadsBlocks()) return formats.full != KvFormat::kQ4;
  return !rule.HasSelector() || formats.bounded != KvFormat::kQ4;
}

// What heads with a selector cannot be combined with.
Status SequenceMaker::CheckSelectors(const HeadPlan& plan) const {
  const auto why_not = [&](const HeadRule& rule, int64_t layer_idx) -> std::string {
    if (!memory_->backend->Has(Feature::kSelection)) {
      return fmt::format("are not among what the backend {} does, expected cpu or ref", memory_->backend->name());
    }
    const bool takes_formats = TakesFormats(rule, memory_->formats);
    if (!takes_formats && rule.ReadsBlocks()) {
      return "cannot be combined with a q4 cache, whose pages would outgrow the bounds of their keys; expected a "
             "kv_dtype like \"f16\" or \"q8\" for heads that keep every token";
    }
    if (!takes_formats) {
      return "cannot be combined with a q4 cache, whose pages must keep their tokens; expected a kv_dtype like \"f16\" "
             "or "
             "\"f16,q8\" for heads that drop tokens";
    }
    if (config_->positions == PositionKind::kAlibi) {
      return rule.ReadsBlocks() ? "cannot be combined with ALiBi: a bound of keys knows no distance"
                                : "cannot be combined with ALiBi: tokens would need their positions in attention";
    }
    if (windows_.At(layer_idx) != kNoLimit) {
      return "cannot be combined with the layer's sliding window; expected a rule by position, or a full head, which "
             "keeps that window";
    }
    if (rule.ReadsBlocks() && page_tokens_ % rule.select.block != 0) {
      return fmt::format("read blocks of {} tokens, but pages have {}; expected a \"block\" that divides these",
                         rule.select.block, page_tokens_);
    }
    if (is_batch_invariant_ && rule.SelectsByScore() && !rule.select.PoolsSums()) {
      return "keep other tokens where a text is cut into other steps, which batch_invariant excludes";
    }
    return "";
  };
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const HeadRule& rule = plan.At(layer_idx, kv_head);
      if (!rule.HasSelector()) continue;
      const std::string reason = why_not(rule, layer_idx);
      if (reason.empty()) continue;
      return Status::Unsupported(fmt::format(
          "plan: layer {}, KV head {}: heads that {} {}", layer_idx, kv_head,
          rule.ReadsBlocks() ? "read blocks of tokens by score" : "select tokens by attention score", reason));
    }
  }
  return Status::Ok();
}

Status SequenceMaker::CheckLimit(int64_t needed_bytes) const {
  const int64_t limit = memory_->limit_bytes;
  if (limit == 0 || needed_bytes <= limit) return Status::Ok();
  return Status::OutOfMemory(
      fmt::format("the KV cache needs {} bytes at worst, {} are available (the KV limit): allow fewer tokens, use a "
                  "plan that keeps less, or raise the limit",
                  needed_bytes, limit));
}

Status SequenceMaker::CheckAvailable(int64_t needed_bytes) const {
  HW_RETURN_IF_ERROR(CheckLimit(needed_bytes));
  if (needed_bytes <= memory_->available_bytes()) return Status::Ok();
  return Status::OutOfMemory(fmt::format("the KV cache needs {} bytes at worst, {} of the limit of {} are available",
                                         needed_bytes, memory_->available_bytes(), memory_->limit_bytes));
}

Status SequenceMaker::Check(const SequenceOptions& options, int64_t step_tokens) const {
  HW_RETURN_IF_ERROR(CheckLength("prompt_tokens", options.prompt_tokens));
  HW_RETURN_IF_ERROR(CheckLength("max_tokens", options.max_tokens));
  const int64_t most = std::max(options.prompt_tokens, options.max_tokens);
  if (config_->num_positions > 0 && most > config_->num_positions) {
    return Status::InvalidInput(fmt::format(
        "sequence: may come to have {} tokens, but the model has learned {} positions", most, config_->num_positions));
  }
  const std::shared_ptr<const HeadPlan> plan = PlanOrDense(options.plan);
  HW_RETURN_IF_ERROR(CheckPlan(*plan));
  if (most > std::numeric_limits<int32_t>::max() && SelectsByScore(*plan)) {
    return Status::InvalidInput(
        fmt::format("sequence: may come to have {} tokens, but heads that select by score count positions up to {}",
                    most, std::numeric_limits<int32_t>::max()));
  }
  return CheckLimit(WorstCaseBytes(*plan, LimitsOf(options), step_tokens));
}

Status SequenceMaker::CheckOwn(const Sequence& sequence) const {
  if (sequence.memory() != memory_) return Status::InvalidInput("sequence: is another engine's, expected one of this");
  if (sequence.failure.ok()) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("sequence: cannot go on, a step on it failed: {}", sequence.failure.message()));
}

Status SequenceMaker::CheckSteps(const Sequence& sequence, int64_t step_tokens) const {
  if (step_tokens <= sequence.step_tokens) return Status::Ok();
  return CheckLimit(WorstCaseBytes(*sequence.plan, sequence.limits, step_tokens));
}

Result<std::shared_ptr<Sequence>> SequenceMaker::Reserve(const SequenceOptions& options, int64_t step_tokens,
                                                         int64_t most_tokens) {
  const std::shared_ptr<const HeadPlan> plan = PlanOrDense(options.plan);
  const SequenceLimits limits = LimitsOf(options);
  const int64_t needed_bytes = WorstCaseBytes(*plan, limits, step_tokens, most_tokens);
  HW_RETURN_IF_ERROR(CheckAvailable(needed_bytes));
  auto sequence = std::make_shared<Sequence>(memory_, needed_bytes);
  sequence->plan = plan;
  sequence->limits = limits;
  sequence->step_tokens = step_tokens;
  if (most_tokens > 0) sequence->reserved_tokens = most_tokens;
  return sequence;
}

void SequenceMaker::MakeCache(Sequence& sequence) const {
  sequence.cache = std::make_unique<KvCache>(memory_->pools(), config_->num_kv_heads,
                                             ResolveRules(*sequence.plan, sequence.limits, windows_));
}

int64_t SequenceMaker::BytesOfNew(const SequenceOptions& options, int64_t step_tokens) const {
  return WorstCaseBytes(*PlanOrDense(options.plan), LimitsOf(options), step_tokens);
}

int64_t SequenceMaker::BytesOfSteps(const Sequence& sequence, int64_t step_tokens) const {
  if (step_tokens <= sequence.step_tokens) return 0;
  const int64_t needed_bytes = WorstCaseBytes(*sequence.plan, sequence.limits, step_tokens);
  return std::max<int64_t>(0, needed_bytes - sequence.reserved_bytes());
}

bool SequenceMaker::OthersHave(int64_t needed_bytes, int64_t excepted_bytes) const {
  const KvMemory::Hold hold(*memory_);
  return needed_bytes > memory_->available_bytes() && memory_->reserved_bytes > excepted_bytes;
}

Result<std::shared_ptr<Sequence>> SequenceMaker::New(const SequenceOptions& options, int64_t step_tokens) {
  HW_RETURN_IF_ERROR(Check(options, step_tokens));
  MakeRoom(BytesOfNew(options, step_tokens));
  const KvMemory::Hold hold(*memory_);
  HW_ASSIGN_OR_RETURN(std::shared_ptr<Sequence> sequence, Reserve(options, step_tokens));
  sequence->rope_frequencies = RopeFrequencies(*config_, options.prompt_tokens, options.max_tokens);
  MakeCache(*sequence);
  return sequence;
}

// Reserved as if nothing were shared: either side may come to copy every page.
Result<std::shared_ptr<Sequence>> SequenceMaker::Fork(const Sequence& sequence) {
  HW_RETURN_IF_ERROR(CheckOwn(sequence));
  MakeRoom(sequence.reserved_bytes());
  const KvMemory::Hold hold(*memory_);
  Status available = CheckAvailable(sequence.reserved_bytes());
  if (!available.ok()) return std::move(available).Annotate("fork");
  auto fork = std::make_shared<Sequence>(memory_, sequence.reserved_bytes());
  fork->plan = sequence.plan;
  fork->limits = sequence.limits;
  fork->step_tokens = sequence.step_tokens;
  fork->cache = sequence.cache->Fork();
  CopyText(sequence, *fork);
  return fork;
}

Result<std::shared_ptr<Sequence>> SequenceMaker::Fork(const Sequence& sequence, const SequenceOptions& options) {
  HW_RETURN_IF_ERROR(CheckOwn(sequence));
  HW_RETURN_IF_ERROR(Check(options, step_tokens_));
  if (options.max_tokens < sequence.NumTextTokens()) {
    return Status::InvalidInput(fmt::format("fork: max_tokens is {}, but the text has {} tokens already",
                                            options.max_tokens, sequence.NumTextTokens()));
  }
  MakeRoom(BytesOfNew(options, step_tokens_));
  const KvMemory::Hold hold(*memory_);
  HW_ASSIGN_OR_RETURN(std::shared_ptr<Sequence> fork, Reserve(options, step_tokens_));
  std::vector<ResolvedRule> rules = ResolveRules(*fork->plan, fork->limits, windows_);
  if (AskForMarks(rules) && !(fork->plan->tokens == sequence.plan->tokens) && sequence.cache->num_tokens() > 0) {
    return Status::InvalidInput(fmt::format(
        "fork: the {} tokens so far were marked by the lists of their own plan, expected the same \"tokens\"",
        sequence.cache->num_tokens()));
  }
  fork->cache = sequence.cache->ForkAs(std::move(rules));
  if (fork->cache == nullptr) {
    return Status::InvalidInput(fmt::format(
        "fork: the {} tokens so far were read under other rules than the new plan's; expected heads that keep their "
        "rule, or rules that hold from the end of a longer prompt{}",
        sequence.cache->num_tokens(), ForkCondition(memory_->formats)));
  }
  CopyText(sequence, *fork);
  return fork;
}

std::optional<PrefixMiss> SequenceMaker::Adopt(Sequence& sequence, const Sequence& from) {
  if (!CheckOwn(from).ok()) return PrefixMiss::kUnknown;
  if (sequence.rope_frequencies != from.rope_frequencies) return PrefixMiss::kPositions;
  std::vector<ResolvedRule> rules = ResolveRules(*sequence.plan, sequence.limits, windows_);
  std::optional<PrefixMiss> miss;
  const Status status = CatchNoMemory("the tables of a kept text", [&] {
    const KvMemory::Hold hold(*memory_);
    std::unique_ptr<KvCache> cache = from.cache->ForkAs(std::move(rules));
    if (cache == nullptr) {
      miss = PrefixMiss::kRules;
      return Status::Ok();
    }
    sequence.seen = from.seen;
    sequence.cache = std::move(cache);
    return Status::Ok();
  });
  return status.ok() ? miss : PrefixMiss::kMemory;
}

bool SequenceMaker::WouldAdopt(const SequenceOptions& options, const Sequence& from, int64_t num_tokens) const {
  // PrefixReuse lets no text under such a plan go on from another.
  if (!CheckOwn(from).ok() || HasSelector(PlanOf(options))) return false;
  if (RopeFrequencies(*config_, options.prompt_tokens, options.max_tokens) != from.rope_frequencies) return false;
  const std::vector<ResolvedRule> rules = ResolveRules(PlanOf(options), LimitsOf(options), windows_);
  const std::vector<ResolvedRule> others = ResolveRules(*from.plan, from.limits, windows_);
  // With two formats heads of either kind have pages of their own.
  const bool has_one_format = memory_->formats.full == memory_->formats.bounded;
  return std::ranges::equal(rules, others, [&](const ResolvedRule& a, const ResolvedRule& b) {
    return (has_one_format || a.Bounded() == b.Bounded()) && SamePast(a, b, num_tokens);
  });
}

Result<std::shared_ptr<Sequence>> SequenceMaker::ForkToKeep(const Sequence& sequence) {
  HW_RETURN_IF_ERROR(CheckOwn(sequence));
  const KvMemory::Hold hold(*memory_);
  const int64_t held_bytes = sequence.cache->Bytes().total();
  HW_RETURN_IF_ERROR(CheckAvailable(held_bytes));
  auto fork = std::make_shared<Sequence>(memory_, held_bytes);
  fork->plan = sequence.plan;
  fork->limits = sequence.limits;
  fork->cache = sequence.cache->Fork();
  CopyText(sequence, *fork);
  return fork;
}

void SequenceMaker::ReserveNoMore(Sequence& sequence) {
  const KvMemory::Hold hold(*memory_);
  const int64_t spare_bytes = sequence.reserved_bytes() - sequence.cache->Bytes().total();
  if (spare_bytes > 0) sequence.ReserveLess(spare_bytes);
  sequence.ReserveHost(-sequence.host_bytes());
  sequence.has_host_promise = false;
}

void SequenceMaker::MakeRoom(int64_t needed_bytes) {
  if (!on_short_ || memory_->limit_bytes == 0) return;
  int64_t missing_bytes = 0;
  {
    const KvMemory::Hold hold(*memory_);
    missing_bytes = needed_bytes - memory_->available_bytes();
  }
  if (missing_bytes > 0) static_cast<void>(on_short_(missing_bytes));
}

Status SequenceMaker::AllowSteps(Sequence& sequence, int64_t step_tokens) {
  if (step_tokens <= sequence.step_tokens) return Status::Ok();
  HW_RETURN_IF_ERROR(CheckSteps(sequence, step_tokens));
  HW_RETURN_IF_ERROR(ReserveMore(sequence, BytesOfSteps(sequence, step_tokens)));
  sequence.step_tokens = step_tokens;
  return Status::Ok();
}

Status SequenceMaker::ReserveMore(Sequence& sequence, int64_t more_bytes) {
  MakeRoom(more_bytes);
  const KvMemory::Hold hold(*memory_);
  HW_RETURN_IF_ERROR(CheckAvailable(more_bytes));
  sequence.ReserveMore(more_bytes);
  return Status::Ok();
}

}  // namespace headwise
