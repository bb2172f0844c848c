#include "inspect_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/kv_format.h"
#include "base/format_bytes.h"
#include "engine/read_plan.h"
#include "engine/sequence_maker.h"
#include "kv/kv_bytes.h"
#include "model/model_config.h"
#include "output.h"

namespace headwise {
namespace {

constexpr int64_t kConversations[] = {1, 8, 32, 128};
constexpr const char* kFormats[] = {"f16", "q8", "q4"};

Result<KvBytesArgs> ArgsFor(const EngineOptions& options, const ModelPreview& model, const HeadPlan& plan,
                            const char* kv_dtype) {
  HW_ASSIGN_OR_RETURN(const KvFormats formats, KvFormatsByName(kv_dtype));
  HW_ASSIGN_OR_RETURN(const int64_t page_tokens, PageTokensFor(0, formats.full));
  const KvLayout layout{.head_dim = plan.shape.head_dim, .page_tokens = page_tokens, .format = formats.full};
  const PageSizes pages = PageSizesOf(model.backend(), layout);
  return KvBytesArgs{.plan = &plan,
                     .limits = {},
                     .windows = LayerWindowsOf(model.config()),
                     .chunk_tokens = options.chunk_tokens,
                     .page_tokens = page_tokens,
                     .full_pages = pages,
                     .bounded_pages = pages};
}

int64_t BytesOfToken(KvBytesArgs args, int64_t tokens) {
  const auto bytes_at = [&](int64_t length) {
    args.limits = {.prompt_tokens = length, .max_tokens = length};
    return PlanKvBytes(args, length).total();
  };
  // Over many pages: the next token alone may need none.
  constexpr int64_t kTokens = 4096;
  return (bytes_at(tokens + kTokens) - bytes_at(tokens)) / kTokens;
}

}  // namespace

int64_t ActivationBytes(const ModelConfig& config, int64_t num_tokens) {
  int64_t ffn_dim = 0;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    ffn_dim = std::max(ffn_dim, config.FfnDim(layer_idx));
  }
  const int64_t of_token = 2 * config.model_dim + 2 * (config.num_q_heads + config.num_kv_heads) * config.head_dim +
                           (IsGated(config.mlp) ? 2 : 1) * ffn_dim;
  return num_tokens * of_token * static_cast<int64_t>(sizeof(float));
}

Result<FitReport> ReportFit(const EngineOptions& options, const ModelPreview& model,
                            const std::shared_ptr<const HeadPlan>& plan, const std::string& plan_path,
                            int64_t memory_bytes) {
  FitReport report{.memory_bytes = memory_bytes,
                   .weight_bytes = model.weight_bytes(),
                   .activation_bytes = ActivationBytes(model.config(), options.chunk_tokens),
                   .kv_bytes = 0,
                   .conversations = {std::begin(kConversations), std::end(kConversations)},
                   .rows = {}};
  report.kv_bytes = memory_bytes - report.weight_bytes - report.activation_bytes;
  const HeadPlan full = HeadPlan::Dense(model.config().shape());
  std::vector<std::pair<std::string, const HeadPlan*>> plans{{std::string(kFullPlan), &full}};
  if (plan != nullptr) plans.emplace_back(plan_path, plan.get());
  for (const auto& [name, each] : plans) {
    for (const char* kv_dtype : kFormats) {
      HW_ASSIGN_OR_RETURN(const KvFormats formats, KvFormatsByName(kv_dtype));
      const auto takes = [&](const HeadRule& rule) { return TakesFormats(rule, formats); };
      if (!std::ranges::all_of(each->rules, takes)) continue;  // they could not run
      HW_ASSIGN_OR_RETURN(const KvBytesArgs args, ArgsFor(options, model, *each, kv_dtype));
      FitRow row{.plan = name, .kv_dtype = kv_dtype, .tokens = {}, .kv_bytes_of_token = {}};
      for (const int64_t count : report.conversations) {
        const int64_t left = report.kv_bytes / count;
        row.tokens.push_back(left <= 0 ? 0 : TokensThatFit(args, left, kMaxSequenceTokens));
        row.kv_bytes_of_token.push_back(count * BytesOfToken(args, row.tokens.back()));
      }
      report.rows.push_back(std::move(row));
    }
  }
  return report;
}

Json FitJson(const FitReport& report) {
  Json rows = Json::array();
  for (const FitRow& row : report.rows) {
    for (size_t i = 0; i < report.conversations.size(); ++i) {
      rows.push_back({{"plan", row.plan},
                      {"kv_dtype", row.kv_dtype},
                      {"conversations", report.conversations[i]},
                      {"tokens", row.tokens[i]},
                      {"kv_bytes_of_token", row.kv_bytes_of_token[i]}});
    }
  }
  return {{"memory_bytes", report.memory_bytes},
          {"weight_bytes", report.weight_bytes},
          {"activation_bytes", report.activation_bytes},
          {"kv_bytes", std::max<int64_t>(0, report.kv_bytes)},
          {"fits", std::move(rows)}};
}

std::string FitText(const FitReport& report) {
  std::string text =
      fmt::format("\nMemory of {}: weights {}, activations of a step about {}, ", FormatBytes(report.memory_bytes),
                  FormatBytes(report.weight_bytes), FormatBytes(report.activation_bytes));
  if (report.kv_bytes <= 0) return text + "which leaves nothing for KV: this model does not fit\n";
  text += fmt::format("{} left for KV (less what a driver takes)\nTokens of each of so many conversations\n",
                      FormatBytes(report.kv_bytes));
  size_t width = 4;
  for (const FitRow& row : report.rows) width = std::max(width, row.plan.size());
  text += fmt::format("{:<{}}  {:>5}", "plan", width, "KV");
  for (const int64_t count : report.conversations) text += fmt::format("{:>14}", count);
  text += "\n";
  for (const FitRow& row : report.rows) {
    text += fmt::format("{:<{}}  {:>5}", row.plan, width, row.kv_dtype);
    for (const int64_t tokens : row.tokens) {
      text += tokens == kMaxSequenceTokens ? fmt::format("{:>14}", "any") : fmt::format("{:>14}", tokens);
    }
    text += "\n";
  }
  return text;
}

}  // namespace headwise
