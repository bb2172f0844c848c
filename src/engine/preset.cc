#include "engine/preset.h"

#include <fmt/format.h>

#include <limits>

#include "base/check.h"
#include "base/format_bytes.h"
#include "engine/sequence_maker.h"

namespace headwise {
namespace {

// What its caches are counted by.
Result<KvBytesArgs> ArgsFor(const PresetInput& input, const PresetOption& option) {
  const HeadPlan& plan = *input.plans[option.plan_idx].plan;
  HW_ASSIGN_OR_RETURN(const int64_t page_tokens, PageTokensFor(input.page_tokens, option.formats.full));
  KvLayout layout{.head_dim = plan.shape.head_dim, .page_tokens = page_tokens, .format = option.formats.full};
  const PageSizes full_pages = input.page_sizes_of(layout);
  layout.format = option.formats.bounded;
  return KvBytesArgs{.plan = &plan,
                     .limits = {},
                     .windows = input.windows,
                     .chunk_tokens = input.chunk_tokens,
                     .page_tokens = page_tokens,
                     .full_pages = full_pages,
                     .bounded_pages = input.page_sizes_of(layout)};
}

void SetLoss(const PresetInput& input, PresetOption& option) {
  const MeasuredLoss of_cache = LossOfCache(option.formats);
  const std::optional<MeasuredLoss>& of_plan = input.plans[option.plan_idx].loss.loss;
  if (of_plan) option.loss = *of_plan + of_cache;
  MeasuredLoss bounded;
  if (!input.formats_are_given) bounded = bounded + of_cache;
  if (!input.plan_is_given) {
    if (!of_plan) return;
    bounded = bounded + *of_plan;
  }
  option.bounded = bounded.worst();
}

bool IsBetter(const PresetOption& a, const PresetOption& b) {
  return a.tokens != b.tokens ? a.tokens > b.tokens : *a.bounded < *b.bounded;
}

// Whether any head may drop tokens, by its rule or by its layer's window: without, the format of such heads makes no
// difference.
bool DropsTokens(const PresetInput& input, const PresetPlan& plan) {
  const auto is_limited = [](int64_t tokens) { return tokens < kNoLimit; };
  return std::ranges::any_of(input.windows.tokens, is_limited) ||
         std::ranges::any_of(plan.plan->rules, [](const HeadRule& rule) { return rule.kind != HeadRule::Kind::kFull; });
}

// Formats that the user asks for stay, and are refused where they are used.
bool CanHave(const PresetInput& input, const PresetPlan& plan, const KvFormats& formats) {
  return input.formats_are_given ||
         std::ranges::all_of(plan.plan->rules, [&](const HeadRule& rule) { return TakesFormats(rule, formats); });
}

std::string Percent(double share) {
  return fmt::format("{:g} %", 100 * share);
}

bool IsWithin(const PresetInput& input, const PresetOption& option) {
  return option.bounded && *option.bounded <= input.max_loss;
}

std::string MemoryText(const PresetMemory& memory) {
  if (memory.kv_limit_bytes > 0) return fmt::format("--kv-limit-bytes {}", FormatBytes(memory.kv_limit_bytes));
  std::string text =
      fmt::format("memory of {} less weights {}, activations of a step about {}", FormatBytes(memory.total_bytes),
                  FormatBytes(memory.weight_bytes), FormatBytes(memory.activation_bytes));
  if (memory.reserve_bytes > 0) text += fmt::format(", {} left to others", FormatBytes(memory.reserve_bytes));
  return text;
}

// `smallest` needs `kv_bytes` for texts of one token.
Status NothingFits(const PresetInput& input, const PresetOption& smallest, int64_t kv_bytes) {
  const PresetMemory& memory = input.memory;
  std::string needs = FormatBytes(kv_bytes);
  if (memory.kv_limit_bytes == 0) {
    needs = fmt::format("{}, {} of it for caches", FormatBytes(AddSizes(kv_bytes, memory.other_bytes())), needs);
  }
  return Status::OutOfMemory(
      fmt::format("preset long: {}: no token fits; the smallest choice, plan {} and cache {}, needs {}",
                  MemoryText(memory), input.plans[smallest.plan_idx].name, NameOf(smallest.formats), needs));
}

const char* Whose(bool is_given) {
  return is_given ? " (as asked for)" : "";
}

std::string WhyText(const PresetInput& input, const PresetChoice& choice) {
  if (input.plan_is_given && input.formats_are_given) return "nothing was left to choose";
  const char* counted = input.plan_is_given       ? ", of the cache alone"
                        : input.formats_are_given ? ", of the plan alone"
                                                  : "";
  const std::string within = fmt::format("of {} choices {} are within a loss of {} (--max-loss{})",
                                         choice.options.size(), choice.num_within, Percent(input.max_loss), counted);
  return choice.chosen.tokens >= input.most_tokens
             ? fmt::format("{}; of those that hold {} tokens, the most of use, it loses least", within,
                           input.most_tokens)
             : fmt::format("{}; of these it holds the most tokens", within);
}

// Of each plan that could have been taken, how far it goes and at what loss.
std::string OptionsText(const PresetInput& input, const PresetChoice& choice) {
  if (input.plan_is_given) return "";
  std::string text;
  for (size_t plan_idx = 0; plan_idx < input.plans.size(); ++plan_idx) {
    const PresetPlan& plan = input.plans[plan_idx];
    const PresetOption* longest = nullptr;  // the first: in the finest format that goes as far
    for (const PresetOption& option : choice.options) {
      if (option.plan_idx == plan_idx && (longest == nullptr || option.tokens > longest->tokens)) longest = &option;
    }
    if (longest == nullptr) continue;
    text += fmt::format("          {} holds up to {} tokens, in {}; loss: {}\n", plan.name, longest->tokens,
                        NameOf(longest->formats),
                        longest->loss ? Describe(*longest->loss) : "not known: " + plan.loss.from);
  }
  return text;
}

}  // namespace

Result<PresetChoice> ChoosePreset(const PresetInput& input) {
  HW_CHECK(!input.plans.empty() && !input.formats.empty());
  PresetChoice choice;
  PresetOption smallest;
  int64_t smallest_bytes = std::numeric_limits<int64_t>::max();
  const int64_t kv_bytes = std::max<int64_t>(0, input.memory.kv_bytes()) / input.num_texts;
  for (size_t plan_idx = 0; plan_idx < input.plans.size(); ++plan_idx) {
    for (const KvFormats& formats : input.formats) {
      if (!input.formats_are_given && formats.full != formats.bounded && !DropsTokens(input, input.plans[plan_idx])) {
        continue;
      }
      if (!CanHave(input, input.plans[plan_idx], formats)) continue;
      PresetOption option{.plan_idx = plan_idx, .formats = formats};
      SetLoss(input, option);
      HW_ASSIGN_OR_RETURN(KvBytesArgs args, ArgsFor(input, option));
      option.tokens = TokensThatFit(args, kv_bytes, input.most_tokens);
      choice.options.push_back(option);
      if (!IsWithin(input, option)) continue;
      if (choice.num_within++ == 0 || IsBetter(option, choice.chosen)) choice.chosen = option;
      args.limits = {.prompt_tokens = 1, .max_tokens = 1};
      const int64_t least_bytes = MultiplySizes(input.num_texts, PeakKvBytes(args));
      if (least_bytes >= smallest_bytes) continue;
      smallest_bytes = least_bytes;
      smallest = option;
    }
  }
  if (choice.num_within == 0) {
    return Status::InvalidInput(fmt::format("preset long: none of {} choices is within a loss of {} (--max-loss)",
                                            choice.options.size(), Percent(input.max_loss)));
  }
  if (choice.chosen.tokens == 0) return NothingFits(input, smallest, smallest_bytes);
  return choice;
}

std::string PresetText(const PresetInput& input, const PresetChoice& choice) {
  const PresetOption& chosen = choice.chosen;
  const PresetPlan& plan = input.plans[chosen.plan_idx];
  std::string text =
      fmt::format("preset    long: plan {}{}, cache {}{}: {} tokens", plan.name, Whose(input.plan_is_given),
                  NameOf(chosen.formats), Whose(input.formats_are_given), chosen.tokens);
  if (input.num_texts > 1) text += fmt::format(" in each of {} texts", input.num_texts);
  text +=
      fmt::format("\nmemory    {} for caches: {}\n", FormatBytes(input.memory.kv_bytes()), MemoryText(input.memory));
  text += chosen.loss ? fmt::format("loss      {}; plan: {}; cache: as measured on the bundled model\n",
                                    Describe(*chosen.loss), plan.loss.from)
                      : fmt::format("loss      not known: {}\n", plan.loss.from);
  text += fmt::format("why       {}\n", WhyText(input, choice));
  return text + OptionsText(input, choice);
}

}  // namespace headwise
