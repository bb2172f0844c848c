#include "server/plan_heads.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>
#include <utility>

#include "backend/kv_format.h"
#include "engine/sequence.h"
#include "kv/plan_view.h"
#include "model/model_config.h"
#include "server/http_target.h"
#include "server/openai_response.h"

namespace headwise {
namespace {

constexpr std::string_view kEnding = "/heads";

struct HeadsQuery {
  std::string model;
  int64_t tokens = 0;
  SequenceLimits limits;
};

std::optional<int64_t> ReadTokens(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || value < 0 || value > kMaxSequenceTokens) return std::nullopt;
  return value;
}

ApiResult<HeadsQuery> ReadHeadsQuery(const std::string& query) {
  HW_ASSIGN_OR_RETURN(const std::vector<HttpField> fields, ParseHttpQuery(query));
  HeadsQuery read;
  std::map<std::string, std::optional<int64_t>> counts = {{"tokens", {}}, {"prompt_tokens", {}}, {"max_tokens", {}}};
  for (const HttpField& field : fields) {
    if (field.name == "model") {
      read.model = field.value;
      continue;
    }
    const auto count = counts.find(field.name);
    if (count == counts.end()) {
      return InvalidField(
          field.name, fmt::format("{}: is unknown, expected tokens, prompt_tokens, max_tokens or model", field.name));
    }
    count->second = ReadTokens(field.value);
    if (!count->second) {
      return InvalidField(field.name, fmt::format("{}: is \"{}\", expected a number from 0 to {}", field.name,
                                                  field.value, kMaxSequenceTokens));
    }
  }
  if (!counts["tokens"]) return InvalidField("tokens", "tokens: is missing, expected how long the text is");
  read.tokens = *counts["tokens"];
  read.limits = {.prompt_tokens = counts["prompt_tokens"].value_or(read.tokens),
                 .max_tokens = counts["max_tokens"].value_or(read.tokens)};
  if (read.limits.max_tokens < read.tokens) {
    return InvalidField("max_tokens", fmt::format("max_tokens: is {}, expected at least tokens, {}",
                                                  read.limits.max_tokens, read.tokens));
  }
  return read;
}

KvBytesArgs ArgsOf(const HeadPages& pages, const SequenceLimits& limits) {
  return {.limits = limits, .page_tokens = pages.tokens, .full_pages = pages.full, .bounded_pages = pages.bounded};
}

// One head as a plan of its own.
KvBytes HeadBytes(const HeadPlan& plan, int64_t layer_idx, int64_t kv_head, const HeadsQuery& query,
                  const HeadPages& pages, int64_t layer_window) {
  HeadPlan one;
  one.shape = plan.shape;
  one.shape.num_layers = one.shape.num_kv_heads = 1;
  one.rules = {plan.At(layer_idx, kv_head)};
  KvBytesArgs args = ArgsOf(pages, query.limits);
  args.plan = &one;
  args.windows = {.tokens = {layer_window}};
  return PlanKvBytes(args, query.tokens);
}

int64_t PageCountOf(const std::vector<ResolvedRule>& rules, int64_t num_tokens, int64_t page_tokens) {
  int64_t pages = 0;
  for (const ResolvedRule& rule : rules) pages = AddSizes(pages, KvPages(rule, num_tokens, page_tokens).total());
  return pages;
}

ApiJson HeadsJson(const ServedModel& model, const NamedPlan& named, const HeadsQuery& query, const HeadPages& pages) {
  const ModelConfig& config = model.engine().config();
  const HeadPlan dense = HeadPlan::Dense(config.shape());
  const HeadPlan& plan = named.plan == nullptr ? dense : *named.plan;
  const LayerWindows windows = LayerWindowsOf(config);
  std::map<std::string, int64_t> rule_idx;
  ApiJson rules = ApiJson::array(), rule_of = ApiJson::array(), tokens = ApiJson::array(), bytes = ApiJson::array();
  KvBytes total;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    ApiJson layer_rules = ApiJson::array(), layer_tokens = ApiJson::array(), layer_bytes = ApiJson::array();
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const std::string rule = DescribeRule(plan.At(layer_idx, kv_head));
      const auto [known, is_new] = rule_idx.emplace(rule, static_cast<int64_t>(rule_idx.size()));
      if (is_new) rules.push_back(rule);
      const KvBytes head = HeadBytes(plan, layer_idx, kv_head, query, pages, windows.At(layer_idx));
      layer_rules.push_back(known->second);
      layer_tokens.push_back(head.kept_tokens);
      layer_bytes.push_back(head.total());
      total.full = AddSizes(total.full, head.full);
      total.bounded = AddSizes(total.bounded, head.bounded);
      total.kept_tokens = AddSizes(total.kept_tokens, head.kept_tokens);
    }
    rule_of.push_back(std::move(layer_rules));
    tokens.push_back(std::move(layer_tokens));
    bytes.push_back(std::move(layer_bytes));
  }
  KvBytesArgs dense_args = ArgsOf(pages, query.limits);
  dense_args.plan = &dense;
  dense_args.windows = windows;
  const int64_t num_pages = PageCountOf(ResolveRules(plan, query.limits, windows), query.tokens, pages.tokens);
  const int64_t num_heads = plan.shape.num_layers * plan.shape.num_kv_heads;
  const int64_t pages_written = MultiplySizes(num_heads, (query.tokens + pages.tokens - 1) / pages.tokens);
  return {{"object", "plan.heads"},
          {"plan", named.name},
          {"model", model.name()},
          {"tokens", query.tokens},
          {"kv_dtype", pages.kv_dtype},
          {"page_tokens", pages.tokens},
          {"rules", std::move(rules)},
          {"rule_of", std::move(rule_of)},
          {"kept_tokens", std::move(tokens)},
          {"kv_bytes", std::move(bytes)},
          {"total",
           {{"kept_tokens", total.kept_tokens},
            {"kv_bytes", total.total()},
            {"kv_bytes_full", total.full},
            {"kv_bytes_bounded", total.bounded},
            {"kv_bytes_all_full", PlanKvBytes(dense_args, query.tokens).total()},
            {"pages", num_pages},
            {"pages_given_back", pages_written - num_pages}}}};
}

}  // namespace

HeadPages HeadPagesOf(const ServedModel& model) {
  const Arithmetic arithmetic = model.engine().arithmetic();
  HeadPages pages{.kv_dtype = arithmetic.kv_dtype, .tokens = model.engine().page_tokens(), .full = {}, .bounded = {}};
  KvLayout layout{.head_dim = model.engine().shape().head_dim, .page_tokens = pages.tokens, .format = KvFormat::kF16};
  // A text knows the memory that its pages would come from.
  const auto text = model.service().NewSequence({.plan = nullptr, .prompt_tokens = 1, .max_tokens = 1});
  if (!text.ok()) {
    pages.kv_dtype = "f16";
    pages.full = pages.bounded = {.newest = TokensBytes(layout.format, layout.head_dim, layout.page_tokens)};
    return pages;
  }
  const KvMemory& memory = *(*text)->memory();
  layout.format = memory.formats.full;
  pages.full = PageSizesOf(*memory.backend, layout);
  layout.format = memory.formats.bounded;
  pages.bounded = PageSizesOf(*memory.backend, layout);
  return pages;
}

ApiResult<HttpResponse> AnswerHeads(const ModelHost& host, const std::map<const ServedModel*, HeadPages>& pages_of,
                                    const HttpRequest& request, const std::string& rest) {
  if (!rest.ends_with(kEnding)) {
    return ApiError{.status = 404,
                    .message = fmt::format("Unknown request URL: GET {}; GET /v1/plans has a list", request.path),
                    .param = {},
                    .code = "unknown_url"};
  }
  HW_ASSIGN_OR_RETURN(const HeadsQuery query, ReadHeadsQuery(request.query));
  HW_ASSIGN_OR_RETURN(const ServedModel* model, host.Find(query.model));
  HW_ASSIGN_OR_RETURN(const NamedPlan plan, model->FindPlan(rest.substr(0, rest.size() - kEnding.size())));
  return HttpResponse{.body = ToText(HeadsJson(*model, plan, query, pages_of.at(model)))};
}

}  // namespace headwise
