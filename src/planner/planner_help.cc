#include "planner/planner_help.h"

#include <fmt/format.h>

#include <utility>  // pair

#include "planner/calibration.h"
#include "planner/duo.h"
#include "planner/gates.h"
#include "planner/zigzag.h"

namespace headwise {
namespace {

struct OfMethod {
  std::string_view method;  // empty: any
  std::string_view option;
  std::string text;
};

// The first row that fits; those of a method before those of any.
template <typename Rows>
std::string TextIn(const Rows& rows, std::string_view method, std::string_view option) {
  for (const OfMethod& row : rows) {
    if (row.option == option && (row.method.empty() || row.method == method)) return row.text;
  }
  return "";
}

// Another meaning of "from": what is read.
constexpr std::pair<std::string_view, std::string_view> kFrom[] = {
    {"duo", "Plan of method duo or profile: its gates, without training"},
    {"zigzag", "Plan of method duo: its gates, without training"},
    {"import-duo", "Folder with full_attention_heads.tsv"},
    {"import-moa", "MoA's JSON file"},
};

// Its budgets are of what is read.
constexpr std::pair<std::string_view, std::string_view> kOfQuest[] = {
    {"budget", "Tokens that a decoding query reads of a head, in whole blocks; every token is kept"},
    {"sink", "First tokens that every query reads beside these"},
    {"kv-ratio", "Budget: a decoding query reads this share of the dense plan's KV bytes, at --at tokens"},
    {"kv-bytes-at", "Budget: BYTES:TOKENS, as 5M:8192, that a decoding query reads"},
};

constexpr std::pair<std::string_view, std::string_view> kOfExpected[] = {
    {"window", "Last tokens of the prompt, which are kept whatever is expected"},
    {"epsilon", "What is added to every token's share of the attention before the length of its value counts"},
};

}  // namespace

std::string_view HelpFor(std::string_view method, std::string_view option) {
  static constexpr std::pair<std::string_view, std::string_view> kHelp[] = {
      {"sink", "First tokens that a bounded head keeps"},
      {"recent", "Last tokens that a bounded head keeps"},
      {"positions", "text, or cache: distances inside the cache"},
      {"from", "Where the rule begins to hold: first_token, or end_of_prompt"},
      {"compensate", "true: fold dropped tokens into one mean token"},
      {"sparsity", "Share of heads that are bounded"},
      {"threshold", "Heads with a gate below this are bounded"},
      {"kv-ratio", "Budget: this share of the dense plan's KV bytes, at --at tokens"},
      {"at", "Tokens at which --kv-ratio holds"},
      {"kv-bytes-at", "Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192"},
      {"seed", "Seed of everything that is drawn"},
      {"alpha", "Span: alpha + beta * context"},
      {"beta", "Span: alpha + beta * context"},
      {"budget", "Tokens that a head keeps"},
      {"recent-share", "Share of the budget that is the newest tokens, whatever they scored"},
      {"window", "Last queries of the prompt that are observed; their tokens are kept"},
      {"kernel", "Neighbouring tokens over which scores are pooled, an odd number; 1: not pooled"},
      {"pooling", "How they are pooled: max, or mean"},
      {"block", "Tokens that are read or not together, a multiple of 16 that divides those of a page"},
      {"dense-layers", "Lowest layers whose heads read every token"},
      {"floor", "Share of a head's budget that does not depend on the other heads of its layer"},
      {"base",
       "Plan whose bounded heads come to select by score, in no more bytes (at --at tokens); with a KV budget it is "
       "refitted first"},
      {"steepness", "Mean budget of the layers over the last layer's, observed tokens left out; 1: all the same"},
      {"rules", "JSON file with a table of rules, [layer][KV head]"},
      {"steps", "Planned training steps; a run whose ranking is settled ends earlier"},
      {"batch", "Samples per step"},
      {"learning-rate", "Of the gates, between warm-up and decay"},
      {"lambda", "Weight of the gates' mean in the loss"},
      {"train-sink", "First tokens that a gate of 0 reads while heads are identified"},
      {"train-recent", "Last tokens that a gate of 0 reads while heads are identified"},
      {"compute", "Products with weights: f32, or bf16 with sums in f32"},
      {"memory-bytes", "Activations of the samples that run at once, as 4G; 0: no limit"},
      {"data", "passkeys (moa: recall), or text: every token of plain text counts (moa: as the model goes on)"},
      {"text", "UTF-8 file that the samples' text comes from; without it text is generated"},
      {"min-tokens", "Shortest sample"},
      {"max-tokens", "Longest sample"},
      {"num-lengths", "Lengths in the even grid between the two"},
      {"passkeys", "Passkeys per sample"},
      {"passkey-words", "Words per passkey"},
      {"samples", "Samples to look at; moa: per length"},
      {"lengths", "Tokens of the profiled texts, rising, separated by commas"},
      {"validation-length", "Tokens of the texts on which a plan is chosen"},
      {"validation-samples", "Texts of that length"},
      {"answer-tokens", "Longest answer of the dense model"},
      {"density", "Limit of the kept share of the text, at every profiled length"},
      {"intervals", "Parts into which each length's range of losses is cut"},
      {"max-rules-per-layer", "Different rules that a layer may have"},
      {"spans", "elastic, or static: spans that do not grow with the text"},
      {"influence",
       "What a rule costs a head: first-order, margin, integrated (gradients towards all heads bounded), or measured"},
      {"integration-points", "Points on that way, for --influence integrated"},
      {"prompts", "JSONL file of {\"prompt\": ...} to calibrate on, in place of generated ones"},
      {"omega", "What a streaming head that becomes full earns, as a share of its gate"},
      {"retrain-steps", "Train one gate per layer for so many steps after the assignment"},
      {"induction-share", "Share of query heads protected for induction"},
      {"echo-share", "Share of query heads protected for echo"},
      {"min-recent", "Smallest window of a head that is not protected"},
      {"divisor", "Its window is the prompt divided by this"},
      {"representatives", "Tokens of a block that stand for it"},
      {"recovery", "Share of a head's attention that its policy has to keep"},
      {"frequent-share", "Tokens with the highest summed attention that some policies keep, as a share of the text"},
      {"local-share", "Newest tokens that some policies keep, as a share of the text"},
      {"epsilon", "ALiBi: attention weights below this may be dropped"},
      {"context", "ALiBi: a window of so many tokens means full"},
  };
  if (method == "quest" || method == "infllm") {
    for (const auto& [name, help] : kOfQuest) {
      if (name == option) return help;
    }
  }
  if (method == "expected") {
    for (const auto& [name, help] : kOfExpected) {
      if (name == option) return help;
    }
  }
  if (option == "from") {
    for (const auto& [name, help] : kFrom) {
      if (name == method) return help;
    }
  }
  for (const auto& [name, help] : kHelp) {
    if (name == option) return help;
  }
  return "";
}

std::string DefaultFor(std::string_view method, std::string_view option) {
  static const DuoOptions duo;
  static const CalibrationOptions data;
  // What the methods keep to themselves is written out; a test of the command gives each default of those that run no
  // model, and finds the same plan.
  static const OfMethod kDefaults[] = {
      {"duo", "from", ""},
      {"zigzag", "from", ""},
      {"import-duo", "from", ""},
      {"import-moa", "from", ""},
      {"import-duo", "sparsity", ""},
      {"streaming", "sink", "4"},
      {"streaming", "recent", "2044"},
      {"streaming", "positions", "cache"},
      {"razor", "sink", "4"},
      {"razor", "compensate", "true"},
      {"razor", "from", "end_of_prompt"},
      {"moa", "samples", "6"},
      {"moa", "data", "recall"},
      {"quest", "sink", "0"},
      {"infllm", "sink", "32"},
      {"infllm", "block", "32"},
      {"", "representatives", "4"},
      {"fastgen", "samples", "4"},
      {"fastgen", "max-tokens", "(4096, or the trained length)"},
      {"", "recovery", "0.95"},
      {"", "frequent-share", "0.3"},
      {"", "local-share", "0.3"},
      {"", "budget", "1024"},
      {"", "block", "16"},
      {"", "dense-layers", "2"},
      {"", "recent-share", "0.5"},
      {"", "steepness", "20"},
      {"", "window", "32"},
      {"", "kernel", "7"},
      {"", "pooling", "max"},
      {"", "floor", "0.2"},
      {"", "sink", fmt::format("{}", kDuoSink)},
      {"", "recent", fmt::format("{}", kDuoRecent)},
      {"", "positions", "text"},
      {"", "from", "first_token"},
      {"", "compensate", "false"},
      {"", "sparsity", "0.5"},
      {"", "alpha", "0"},
      {"", "beta", "0.5"},
      {"", "seed", "0"},
      {"", "steps", fmt::format("{}", duo.num_steps)},
      {"", "batch", fmt::format("{}", duo.samples_per_step)},
      {"", "learning-rate", fmt::format("{}", duo.learning_rate)},
      {"", "lambda", fmt::format("{}", duo.regulariser)},
      {"", "train-sink", fmt::format("{}", duo.train_rule.sink)},
      {"", "train-recent", fmt::format("{}", duo.train_rule.recent)},
      {"", "compute", "f32"},
      {"", "memory-bytes", "0"},
      {"", "data", "passkeys"},
      {"", "min-tokens", "(1000, or what holds the passkeys)"},
      {"", "max-tokens", "(32000, or the trained length)"},
      {"", "num-lengths", "50"},
      {"", "passkeys", fmt::format("{}", data.num_passkeys)},
      {"", "passkey-words", fmt::format("{}", data.words_per_passkey)},
      {"", "samples", "8"},
      {"", "lengths", "(2048,4096,8192, or a sixth, a third and two thirds of the trained length)"},
      {"", "validation-length", "(1.5 times the longest of --lengths)"},
      {"", "validation-samples", "3"},
      {"", "answer-tokens", "48"},
      {"", "density", "0.5"},
      {"", "intervals", "5"},
      {"", "max-rules-per-layer", "2"},
      {"", "spans", "elastic"},
      {"", "influence", "first-order"},
      {"", "integration-points", "2"},
      {"", "omega", fmt::format("{}", TransportProblem().omega)},
      {"", "retrain-steps", "0"},
      {"", "induction-share", "0.14"},
      {"", "echo-share", "0.01"},
      {"", "min-recent", "4000"},
      {"", "divisor", "5"},
      {"expected", "epsilon", "0"},
      {"", "epsilon", "0.001"},
      {"", "context", "(the trained length)"},
  };
  return TextIn(kDefaults, method, option);
}

bool IsRequired(std::string_view method, std::string_view option) {
  return option == "rules" || (option == "from" && method.starts_with("import-"));
}

}  // namespace headwise
