// The table of ablations. Sizes are the papers' where a small model has room for them.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "eval/ablation.h"

namespace headwise {
namespace {

using Options = std::map<std::string, std::string>;

std::string Text(double number) {
  return fmt::format("{:g}", number);
}

std::string Text(int64_t number) {
  return fmt::format("{}", number);
}

Options With(Options options, const Options& more) {
  options.insert(more.begin(), more.end());
  return options;
}

Options Budget(const AblationInput& input) {
  return {{"kv-ratio", Text(input.kv_ratio)}, {"at", Text(input.length)}};
}

std::vector<AblationTask> Perplexity(const AblationInput& input) {
  return {{"ppl", {{"text", input.text}, {"tokens", Text(input.length)}}}};
}

std::vector<AblationTask> Retrieval(const AblationInput& input) {
  const Options cases = {{"lengths", Text(input.length)}, {"num-cases", Text(input.num_cases)}};
  return {{"passkey", cases}, {"lines", cases}};
}

// A window that leaves most of the text outside.
int64_t WindowOf(const AblationInput& input) {
  return std::max<int64_t>(64, input.length / 8);
}

std::vector<AblationVariant> Sinks(const AblationInput& input) {
  std::vector<AblationVariant> variants;
  for (const int64_t sink : {0, 1, 2, 4, 8, 16}) {
    const int64_t recent = WindowOf(input) - sink;
    variants.push_back({.label = fmt::format("{}+{}", sink, recent),
                        .method = "streaming",
                        .options = {{"sink", Text(sink)}, {"recent", Text(recent)}}});
  }
  return variants;
}

std::vector<AblationVariant> Windows(const AblationInput& input) {
  std::vector<AblationVariant> variants;
  for (int64_t size = 64; size <= input.length / 2; size *= 2) {
    variants.push_back({.label = fmt::format("4+{}", size - 4),
                        .method = "streaming",
                        .options = {{"sink", "4"}, {"recent", Text(size - 4)}}});
  }
  return variants;
}

// As many full heads everywhere as fit the ratio; what differs is what the others keep.
std::vector<AblationVariant> DuoSizes(const AblationInput& input) {
  std::vector<AblationVariant> variants;
  const auto add = [&](int64_t sink, int64_t recent) {
    variants.push_back({.label = fmt::format("{}+{}", sink, recent),
                        .method = "duo",
                        .options = {{"from", input.gates},
                                    {"sparsity", Text(1 - input.kv_ratio)},
                                    {"sink", Text(sink)},
                                    {"recent", Text(recent)}}});
  };
  for (const int64_t sink : {0, 1, 4, 16, 64}) add(sink, 64);
  for (const int64_t recent : {4, 16, 256}) add(16, recent);
  return variants;
}

// Of texts that heads are identified on, no longer than those that follow: the planners' own lengths take minutes a
// step without an accelerator.
Options TextLengths(const AblationInput& input) {
  return {{"min-tokens", Text(std::max<int64_t>(256, input.length * 3 / 8))}, {"max-tokens", Text(input.length)}};
}

std::vector<AblationVariant> Identification(const AblationInput& input) {
  const Options profile = With(Budget(input), TextLengths(input));
  Options training = profile;
  if (!input.steps.empty()) training["steps"] = input.steps;
  return {{.label = "optimised on passkeys", .method = "duo", .options = With(Budget(input), {{"from", input.gates}})},
          {.label = "optimised on language modelling", .method = "duo", .options = With(training, {{"data", "text"}})},
          {.label = "attention profile, passkeys", .method = "profile", .options = profile},
          {.label = "attention profile, text", .method = "profile", .options = With(profile, {{"data", "text"}})},
          {.label = "random", .method = "random", .options = Budget(input)}};
}

// Windows as everywhere in the table: far smaller than the text, so that what is protected shows.
Options RazorWindow(const AblationInput& input) {
  return {{"min-recent", Text(WindowOf(input))}, {"divisor", "8"}};
}

std::vector<AblationVariant> RazorShare(const AblationInput& input) {
  std::vector<AblationVariant> variants;
  for (const double share : {0.0, 0.02, 0.05, 0.08, 0.14, 0.3}) {
    variants.push_back({.label = fmt::format("induction {:g} %", share * 100),
                        .method = "razor",
                        .options = With(RazorWindow(input), {{"induction-share", Text(share)}})});
  }
  return variants;
}

std::vector<AblationVariant> RazorHeads(const AblationInput& input) {
  const auto variant = [&](std::string label, const char* induction, const char* echo) {
    return AblationVariant{.label = std::move(label),
                           .method = "razor",
                           .options = With(RazorWindow(input), {{"induction-share", induction}, {"echo-share", echo}})};
  };
  return {variant("none", "0", "0"), variant("echo alone", "0", "0.01"), variant("induction alone", "0.14", "0"),
          variant("both", "0.14", "0.01")};
}

std::vector<AblationVariant> Compensation(const AblationInput& input) {
  std::vector<AblationVariant> variants;
  for (const char* compensate : {"true", "false"}) {
    const std::string label = compensate == std::string_view("true") ? "with" : "without";
    variants.push_back({.label = "razor " + label,
                        .method = "razor",
                        .options = With(RazorWindow(input), {{"compensate", compensate}})});
    variants.push_back({.label = "no head protected " + label,
                        .method = "razor",
                        .options = With(RazorWindow(input),
                                        {{"compensate", compensate}, {"induction-share", "0"}, {"echo-share", "0"}})});
  }
  return variants;
}

std::vector<AblationVariant> Omega(const AblationInput& input) {
  std::vector<AblationVariant> variants;
  for (const double omega : {0.0, 0.1, 0.2, 0.3, 0.5, 1.0}) {
    variants.push_back({.label = fmt::format("omega {:g}", omega),
                        .method = "zigzag",
                        .options = With(Budget(input), {{"from", input.gates}, {"omega", Text(omega)}})});
  }
  return variants;
}

// Profiled up to the length at which plans are compared.
Options MoaLengths(const AblationInput& input) {
  const int64_t half = input.length / 2;
  return {{"lengths", fmt::format("{},{},{}", half / 2, half, input.length)},
          {"validation-length", Text(input.length + half)}};
}

std::vector<AblationVariant> MoaSpans(const AblationInput& input) {
  const Options moa = With(Budget(input), MoaLengths(input));
  return {{.label = "uniform", .method = "uniform", .options = Budget(input)},
          {.label = "static", .method = "moa", .options = With(moa, {{"spans", "static"}})},
          {.label = "elastic", .method = "moa", .options = moa}};
}

std::vector<AblationVariant> MoaText(const AblationInput& input) {
  const Options moa = With(Budget(input), MoaLengths(input));
  return {{.label = "far-away answers", .method = "moa", .options = moa},
          {.label = "plain text", .method = "moa", .options = With(moa, {{"data", "text"}})}};
}

std::vector<AblationVariant> MoaInfluence(const AblationInput& input) {
  const Options moa = With(Budget(input), MoaLengths(input));
  std::vector<AblationVariant> variants;
  for (const char* influence : {"first-order", "margin", "integrated", "measured"}) {
    variants.push_back({.label = influence, .method = "moa", .options = With(moa, {{"influence", influence}})});
  }
  return variants;
}

// What dropped tokens by score, or by position, in the tables that a paper compares itself in, at equal bytes.
std::vector<AblationVariant> Beside(AblationVariant paper, const AblationInput& input,
                                    std::initializer_list<const char*> others) {
  std::vector<AblationVariant> variants = {std::move(paper)};
  for (const char* method : others) {
    const bool runs_model = std::string_view(method) == "fastgen";
    variants.push_back({.label = method,
                        .method = method,
                        .options = runs_model ? With(Budget(input), TextLengths(input)) : Budget(input)});
  }
  return variants;
}

std::vector<AblationVariant> DuoBaselines(const AblationInput& input) {
  return Beside({.label = "duo", .method = "duo", .options = With(Budget(input), {{"from", input.gates}})}, input,
                {"h2o", "tova", "fastgen", "streaming"});
}

std::vector<AblationVariant> RazorBaselines(const AblationInput& input) {
  return Beside({.label = "razor", .method = "razor", .options = Budget(input)}, input, {"h2o", "streaming"});
}

std::vector<AblationVariant> MoaBaselines(const AblationInput& input) {
  return Beside({.label = "moa", .method = "moa", .options = With(Budget(input), MoaLengths(input))}, input,
                {"h2o", "infllm", "streaming"});
}

std::vector<AblationVariant> Selectors(const AblationInput& input) {
  std::vector<AblationVariant> variants =
      Beside({.label = "streaming", .method = "streaming", .options = Budget(input)}, input,
             {"h2o", "tova", "snapkv", "pyramidkv", "adakv", "fastgen", "knorm", "keydiff", "expected", "infllm"});
  // The budget is of what it reads. Two dense layers may be more than that.
  variants.push_back({.label = "quest", .method = "quest", .options = With(Budget(input), {{"dense-layers", "0"}})});
  return variants;
}

}  // namespace

std::span<const Ablation> Ablations() {
  static const std::vector<Ablation> kTable = {
      {.name = "sinks",
       .title = "Sinks at equal cache sizes",
       .description = "how many sinks a stream needs [streaming-llm table 2]",
       .needs_text = true,
       .variants = Sinks,
       .tasks = Perplexity},
      {.name = "windows",
       .title = "Cache sizes of a stream",
       .description = "how much a stream gains from a larger window [streaming-llm table 6]",
       .needs_text = true,
       .variants = Windows,
       .tasks = Perplexity},
      {.name = "duo-sizes",
       .title = "Sinks and windows of streaming heads",
       .description = "what streaming heads beside retrieval heads need [duo fig. 13 (3)]",
       .needs_gates = true,
       .variants = DuoSizes,
       .tasks = Retrieval},
      {.name = "identification",
       .title = "How retrieval heads are found",
       .description = "optimisation, attention profile, language modelling [duo §3.5, fig. 13 (1)]",
       .needs_gates = true,
       .variants = Identification,
       .tasks = Retrieval},
      {.name = "razor-share",
       .title = "Protected induction heads",
       .description = "how many induction heads razor has to protect [razor table 4]",
       .variants = RazorShare,
       .tasks = Retrieval},
      {.name = "razor-heads",
       .title = "Echo and induction heads",
       .description = "echo heads alone, induction heads alone, both [razor fig. 5]",
       .variants = RazorHeads,
       .tasks = Retrieval},
      {.name = "compensation",
       .title = "The compensation token",
       .description = "dropped tokens folded into one, or lost [razor fig. 7]",
       .variants = Compensation,
       .tasks = Retrieval},
      {.name = "omega",
       .title = "ZigZag's omega",
       .description = "what a streaming head in a full layer earns [zigzag §3, impact of omega]",
       .needs_gates = true,
       .variants = Omega,
       .tasks = Retrieval},
      {.name = "moa-spans",
       .title = "Kinds of spans",
       .description = "uniform, static per head, elastic per head [moa table 5]",
       .variants = MoaSpans,
       .tasks = Retrieval},
      {.name = "moa-text",
       .title = "What MoA is calibrated on",
       .description = "far-away answers or plain text [moa table 2]",
       .variants = MoaText,
       .tasks = Retrieval},
      {.name = "moa-influence",
       .title = "What tells MoA what a span costs",
       .description = "the loss's first order, a margin's, integrated gradients, or measured losses",
       .variants = MoaInfluence,
       .tasks = Retrieval},
      {.name = "duo-baselines",
       .title = "DuoAttention beside heads that drop tokens alike",
       .description = "H2O, TOVA, FastGen and StreamingLLM at equal bytes [duo §A.3]",
       .needs_gates = true,
       .variants = DuoBaselines,
       .tasks = Retrieval},
      {.name = "razor-baselines",
       .title = "RazorAttention beside heads that drop tokens alike",
       .description = "H2O and StreamingLLM at equal bytes [razor table 3]",
       .variants = RazorBaselines,
       .tasks = Retrieval},
      {.name = "moa-baselines",
       .title = "MoA beside heads that drop tokens alike",
       .description = "H2O, InfLLM and StreamingLLM at equal bytes [moa table 3]",
       .variants = MoaBaselines,
       .tasks = Retrieval},
      {.name = "selectors",
       .title = "What says which tokens stay",
       .description = "every policy that chooses tokens by score, in every head, and a window",
       .variants = Selectors,
       .tasks = Retrieval},
  };
  return kTable;
}

}  // namespace headwise
