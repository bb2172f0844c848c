// Reads, checks and writes head plans: the functions of headwise/head_plan.h. The rules' own JSON is kv/rule_json.h.
#include <fmt/format.h>
#include <headwise/head_plan.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "kv/rule.h"
#include "kv/rule_json.h"
#include "kv/token_marks.h"

namespace headwise {
namespace {

// Longer than any text, small enough that no sum or product of lengths overflows.
constexpr int64_t kMaxRuleTokens = int64_t{1} << 40;
// Bounds a shape before anything multiplies its numbers; far above any model.
constexpr int64_t kMaxShapeNumber = 1 << 20;
// Parameters and report are the free-form parts of the file: nothing that nests deeper was written by a planner.
constexpr int kMaxParameterDepth = 32;

Status CheckLength(const char* name, int64_t value, int64_t minimum) {
  if (value >= minimum && value <= kMaxRuleTokens) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("\"{}\" is {}, expected {} to {} tokens", name, value, minimum, kMaxRuleTokens));
}

Status CheckNumber(const char* name, double value, double minimum) {
  // Written so that NaN fails.
  if (value >= minimum && value <= static_cast<double>(kMaxRuleTokens)) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("\"{}\" is {}, expected a number from {} to {}", name, value, minimum, kMaxRuleTokens));
}

Status ValidateShape(const ModelShape& shape) {
  const std::pair<const char*, int64_t> numbers[] = {{"num_layers", shape.num_layers},
                                                     {"num_q_heads", shape.num_q_heads},
                                                     {"num_kv_heads", shape.num_kv_heads},
                                                     {"head_dim", shape.head_dim}};
  for (const auto& [name, value] : numbers) {
    if (value < 1 || value > kMaxShapeNumber) {
      return Status::InvalidInput(fmt::format("\"{}\" is {}, expected 1 to {}", name, value, kMaxShapeNumber));
    }
  }
  if (shape.num_q_heads % shape.num_kv_heads != 0) {
    return Status::InvalidInput(
        fmt::format("{} query heads do not divide into groups for {} KV heads", shape.num_q_heads, shape.num_kv_heads));
  }
  if (shape.architecture.empty()) return Status::InvalidInput("\"architecture\" is empty, expected a family's name");
  return Status::Ok();
}

bool NestsDeeperThan(const Json& value, int depth) {
  if (!value.is_structured()) return false;
  if (depth == 0) return true;
  for (const Json& child : value) {
    if (NestsDeeperThan(child, depth - 1)) return true;
  }
  return false;
}

Status CheckParameters(const Json& parameters, std::string_view origin) {
  if (!parameters.is_object()) {
    return Status::InvalidInput(fmt::format("{}: found a JSON {}, expected an object", origin, parameters.type_name()));
  }
  if (NestsDeeperThan(parameters, kMaxParameterDepth)) {
    return Status::InvalidInput(fmt::format("{}: nests deeper than {} levels", origin, kMaxParameterDepth));
  }
  return Status::Ok();
}

Result<ModelShape> ReadShape(const JsonObject& root) {
  HW_ASSIGN_OR_RETURN(const JsonObject model, root.Object("model"));
  HW_RETURN_IF_ERROR(RefuseUnknownKeys(root.At("model"), model.origin(),
                                       {"architecture", "num_layers", "num_q_heads", "num_kv_heads", "head_dim"}));
  ModelShape shape;
  HW_ASSIGN_OR_RETURN(shape.architecture, model.String("architecture"));
  HW_ASSIGN_OR_RETURN(shape.num_layers, model.Int("num_layers"));
  HW_ASSIGN_OR_RETURN(shape.num_q_heads, model.Int("num_q_heads"));
  HW_ASSIGN_OR_RETURN(shape.num_kv_heads, model.Int("num_kv_heads"));
  HW_ASSIGN_OR_RETURN(shape.head_dim, model.Int("head_dim"));
  HW_RETURN_IF_ERROR(ValidateShape(shape).Annotate(model.origin()));
  return shape;
}

Status ReadScores(const Json& table, const std::string& origin, HeadPlan* plan) {
  if (table.is_array() && table.empty()) return Status::Ok();
  const auto wrong = [&](const std::string& where) {
    return Status::InvalidInput(fmt::format("{}: {}, expected {} rows of {} numbers", origin, where,
                                            plan->shape.num_layers, plan->shape.num_kv_heads));
  };
  if (!table.is_array()) return wrong(fmt::format("found a JSON {}", table.type_name()));
  if (static_cast<int64_t>(table.size()) != plan->shape.num_layers) {
    return wrong(fmt::format("found {} rows", table.size()));
  }
  for (size_t row = 0; row < table.size(); ++row) {
    if (!table[row].is_array() || static_cast<int64_t>(table[row].size()) != plan->shape.num_kv_heads) {
      return wrong(fmt::format("row {} is of another size", row));
    }
    for (const Json& score : table[row]) {
      if (!score.is_number()) return wrong(fmt::format("row {} holds a JSON {}", row, score.type_name()));
      plan->scores.push_back(score.get<double>());
    }
  }
  return Status::Ok();
}

Status ReadProvenance(const JsonObject& root, HeadPlan* plan) {
  HW_ASSIGN_OR_RETURN(plan->method, root.StringOr("method", "manual"));
  if (root.Has("source_hash")) {
    HW_ASSIGN_OR_RETURN(plan->source_hash, root.String("source_hash"));
  }
  if (root.Has("data_hash")) {
    HW_ASSIGN_OR_RETURN(plan->data_hash, root.String("data_hash"));
  }
  if (root.Has("seed")) {
    // The one number that uses all 64 bits.
    if (!root.At("seed").is_number_unsigned()) {
      return Status::InvalidInput(fmt::format("{}: \"seed\" is not a whole number from 0 to 2^64 - 1", root.origin()));
    }
    plan->seed = root.At("seed").get<uint64_t>();
  }
  if (root.Has("parameters")) {
    HW_RETURN_IF_ERROR(CheckParameters(root.At("parameters"), fmt::format("{}: \"parameters\"", root.origin())));
    plan->parameters_json = root.At("parameters").dump();
  }
  if (root.Has("report")) {
    HW_RETURN_IF_ERROR(CheckParameters(root.At("report"), fmt::format("{}: \"report\"", root.origin())));
    plan->report_json = root.At("report").dump();
  }
  if (root.Has("notes")) {
    const Json& notes = root.At("notes");
    const auto is_string = [](const Json& note) { return note.is_string(); };
    if (!notes.is_array() || !std::all_of(notes.begin(), notes.end(), is_string)) {
      return Status::InvalidInput(fmt::format("{}: \"notes\" is not a list of strings", root.origin()));
    }
    for (const Json& note : notes) plan->notes.push_back(note.get<std::string>());
  }
  if (root.Has("scores")) {
    HW_RETURN_IF_ERROR(ReadScores(root.At("scores"), fmt::format("{}: \"scores\"", root.origin()), plan));
  }
  return Status::Ok();
}

// A JSON string. Bytes that are not UTF-8 (a path, say) become U+FFFD: the file must stay readable.
std::string Quote(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string QuoteOrNull(const std::optional<std::string>& text) {
  return text ? Quote(*text) : "null";
}

// "[a, b]" with one element per line; `indent` is that of the closing bracket.
std::string FormatLines(const std::vector<std::string>& elements, const std::string& indent) {
  if (elements.empty()) return "[]";
  const std::string separator = ",\n" + indent + " ";
  return fmt::format("[\n{0} {1}\n{0}]", indent, fmt::join(elements, separator));
}

std::string Describe(const ModelShape& shape) {
  return fmt::format("{} with {} layers, {} query heads, {} KV heads, head dimension {}", shape.architecture,
                     shape.num_layers, shape.num_q_heads, shape.num_kv_heads, shape.head_dim);
}

// Lists in order, no token in both, and some token where a head asks what tokens are.
Status CheckTokens(const HeadPlan& plan) {
  const auto& [special, punctuation] = plan.tokens;
  for (const auto& [name, list] : {std::pair("special", &special), std::pair("punctuation", &punctuation)}) {
    const auto wrong = std::ranges::adjacent_find(*list, std::greater_equal());
    if (wrong == list->end() && (list->empty() || list->front() >= 0)) continue;
    return Status::InvalidInput(fmt::format(
        "\"tokens\": \"{}\": found {}, expected ids from 0 on, ascending", name,
        wrong == list->end() ? fmt::to_string(list->front()) : fmt::format("{} before {}", *wrong, wrong[1])));
  }
  std::vector<int32_t> both;
  std::ranges::set_intersection(special, punctuation, std::back_inserter(both));
  if (!both.empty()) {
    return Status::InvalidInput(fmt::format(
        "\"tokens\": {} is among the special ones and among those of punctuation, expected one", both.front()));
  }
  const bool has_lists = !(plan.tokens == TokenLists{});
  const bool asks = AskForMarks(plan.rules);
  if (has_lists == asks) return Status::Ok();
  return Status::InvalidInput(
      asks ? "a head selects by \"fastgen\", but the plan lists no tokens; expected \"tokens\": {\"special\": [...], "
             "\"punctuation\": [...]}"
           : "\"tokens\" are listed, but no head selects by \"fastgen\"; expected none");
}

// How a rule and its selector go together.
Status ValidateSelector(const HeadRule& rule) {
  using Kind = TokenSelector::Kind;
  const TokenSelector& select = rule.select;
  TokenSelector used;  // what its kind has
  used.kind = select.kind;
  if (select.HasRecentShare()) used.recent_share = select.recent_share;
  if (select.kind == Kind::kFastGen) used.punctuation = select.punctuation;
  if (select.CutsOnce()) used.window = select.window;
  if (select.PoolsSums()) {
    used.kernel = select.kernel;
    used.pooling = select.pooling;
  }
  if (select.kind == Kind::kAdaKv) used.floor = select.floor;
  if (select.kind == Kind::kExpected) used.epsilon = select.epsilon;
  if (select.ReadsBlocks()) used.block = select.block;
  if (select.kind == Kind::kInfLlm) used.representatives = select.representatives;
  if (!(used == select)) {
    return Status::InvalidInput("the selector carries options that its kind does not have, expected them unset");
  }
  if (select.kind == Kind::kPosition) return Status::Ok();
  if (rule.compensate && (select.ReadsBlocks() || select.kind == Kind::kAdaKv)) {
    return Status::InvalidInput(
        "\"compensate\" cannot be combined with \"select\" by adakv, whose heads share, or by quest or infllm, which "
        "drop nothing: expected one of the two");
  }
  if (rule.positions == Positions::kCache) {
    return Status::InvalidInput(
        "\"select\" needs \"positions\": \"text\": tokens that are chosen by score lie in no order in the cache");
  }
  if (select.HasRecentShare()) {
    HW_RETURN_IF_ERROR(CheckNumber("recent_share", select.recent_share, 0));
    if (select.recent_share > 1) {
      return Status::InvalidInput(fmt::format("\"recent_share\" is {}, expected 0 to 1", select.recent_share));
    }
  }
  if (select.kind == Kind::kAdaKv) {
    HW_RETURN_IF_ERROR(CheckNumber("floor", select.floor, 0));
    if (select.floor > 1) {
      return Status::InvalidInput(fmt::format("\"floor\" is {}, expected 0 to 1", select.floor));
    }
  }
  if (select.ReadsBlocks()) {
    const bool is_infllm = select.kind == Kind::kInfLlm;
    const int64_t least = is_infllm ? 32 : 16;
    if (select.block < least || select.block > kMaxRuleTokens || select.block % 16 != 0) {
      return Status::InvalidInput(
          fmt::format("\"block\" is {}, expected a multiple of 16, {} or more", select.block, least));
    }
    if (is_infllm && (select.representatives < 1 || select.representatives > select.block)) {
      return Status::InvalidInput(fmt::format("\"representatives\" is {}, expected 1 to {}, the tokens of a block",
                                              select.representatives, select.block));
    }
    if (rule.start == RuleStart::kEndOfPrompt) return Status::Ok();
    return Status::InvalidInput(
        fmt::format("\"select\" by \"{}\" needs \"from\": \"end_of_prompt\": a prompt's own queries read all of it",
                    is_infllm ? "infllm" : "quest"));
  }
  if (!select.CutsOnce()) return Status::Ok();
  HW_RETURN_IF_ERROR(CheckLength("window", select.window, select.kind == Kind::kExpected ? 0 : 1));
  HW_RETURN_IF_ERROR(CheckNumber("epsilon", select.epsilon, 0));
  constexpr int64_t kMaxKernel = 1023;
  if (select.kernel < 1 || select.kernel > kMaxKernel || select.kernel % 2 == 0) {
    return Status::InvalidInput(
        fmt::format("\"kernel\" is {}, expected an odd number from 1 to {}", select.kernel, kMaxKernel));
  }
  if (rule.start == RuleStart::kEndOfPrompt) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("\"select\" by \"{}\" needs \"from\": \"end_of_prompt\": it chooses when the prompt was read",
                  select.kind == Kind::kAdaKv    ? "adakv"
                  : select.kind == Kind::kSnapKv ? "snapkv"
                                                 : "expected"));
}

// Heads of a layer that share their budgets share one.
Status CheckSharing(const HeadPlan& plan) {
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    int64_t first = -1;
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const HeadRule& rule = plan.At(layer_idx, kv_head);
      if (rule.select.kind != TokenSelector::Kind::kAdaKv) continue;
      if (first < 0) first = kv_head;
      if (rule == plan.At(layer_idx, first)) continue;
      return Status::InvalidInput(
          fmt::format("layer {}: KV heads {} and {} select by \"adakv\" and have different rules, expected one: they "
                      "share their budgets",
                      layer_idx, first, kv_head));
    }
  }
  return Status::Ok();
}

}  // namespace

HeadPlan HeadPlan::Dense(const ModelShape& shape) {
  HeadPlan plan;
  plan.shape = shape;
  plan.method = "dense";
  plan.rules.assign(static_cast<size_t>(shape.num_layers * shape.num_kv_heads), HeadRule::Full());
  return plan;
}

Status ValidateRule(const HeadRule& rule) {
  // What the kind does not use must be unset, or writing the rule would lose it.
  HeadRule used = rule;
  used.recent = 0;
  used.alpha = used.beta = 0;
  used.min_recent = 0;
  used.divisor = 1;
  switch (rule.kind) {
    case HeadRule::Kind::kFull:
      used = HeadRule::Full();
      break;
    case HeadRule::Kind::kStream:
      HW_RETURN_IF_ERROR(CheckLength("recent", rule.recent, 1));  // 1: a token reads at least itself
      used.recent = rule.recent;
      break;
    case HeadRule::Kind::kElasticMoa:
      HW_RETURN_IF_ERROR(CheckNumber("alpha", rule.alpha, -static_cast<double>(kMaxRuleTokens)));
      HW_RETURN_IF_ERROR(CheckNumber("beta", rule.beta, 0));
      used.alpha = rule.alpha;
      used.beta = rule.beta;
      break;
    case HeadRule::Kind::kElasticRazor:
      HW_RETURN_IF_ERROR(CheckLength("min", rule.min_recent, 0));
      HW_RETURN_IF_ERROR(CheckNumber("divisor", rule.divisor, 1));
      used.min_recent = rule.min_recent;
      used.divisor = rule.divisor;
      break;
  }
  if (!(used == rule)) {
    return Status::InvalidInput("the rule carries options that its kind does not have, expected them unset");
  }
  HW_RETURN_IF_ERROR(CheckLength("sink", rule.sink, 0));
  if (rule.compensate && rule.positions == Positions::kCache) {
    return Status::InvalidInput(
        "\"compensate\" needs \"positions\": \"text\": dropped keys have no position inside the cache");
  }
  return ValidateSelector(rule);
}

Status ValidatePlan(const HeadPlan& plan, const std::string& origin) {
  HW_RETURN_IF_ERROR(ValidateShape(plan.shape).Annotate(origin));
  const int64_t num_heads = plan.shape.num_layers * plan.shape.num_kv_heads;
  if (static_cast<int64_t>(plan.rules.size()) != num_heads) {
    return Status::InvalidInput(fmt::format("{}: {} rules, expected one per layer and KV head, {} in all", origin,
                                            plan.rules.size(), num_heads));
  }
  for (int64_t i = 0; i < num_heads; ++i) {
    HW_RETURN_IF_ERROR(ValidateRule(plan.rules[static_cast<size_t>(i)])
                           .Annotate(fmt::format("{}: layer {}, KV head {}", origin, i / plan.shape.num_kv_heads,
                                                 i % plan.shape.num_kv_heads)));
  }
  HW_RETURN_IF_ERROR(CheckSharing(plan).Annotate(origin));
  HW_RETURN_IF_ERROR(CheckTokens(plan).Annotate(origin));
  if (!plan.scores.empty() && static_cast<int64_t>(plan.scores.size()) != num_heads) {
    return Status::InvalidInput(fmt::format("{}: {} scores, expected none or one per layer and KV head, {} in all",
                                            origin, plan.scores.size(), num_heads));
  }
  for (const double score : plan.scores) {
    if (!std::isfinite(score)) {
      return Status::InvalidInput(fmt::format("{}: a score is {}, expected a finite number", origin, score));
    }
  }
  HW_ASSIGN_OR_RETURN(const Json parameters, ParseJson(plan.parameters_json, origin + ": parameters"));
  HW_RETURN_IF_ERROR(CheckParameters(parameters, origin + ": parameters"));
  HW_ASSIGN_OR_RETURN(const Json report, ParseJson(plan.report_json, origin + ": report"));
  return CheckParameters(report, origin + ": report");
}

Status CheckPlanFits(const HeadPlan& plan, const ModelShape& shape, const std::string& origin) {
  if (plan.shape == shape) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("{}: the plan is for {}; the model is {}", origin, Describe(plan.shape), Describe(shape)));
}

Result<HeadPlan> ParseHeadPlan(std::string_view text, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseJsonUniqueKeys(text, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(json, origin));
  if (!root.Has("headwise_plan")) {
    return Status::InvalidInput(fmt::format("{}: \"headwise_plan\" is missing, this is not a head plan", origin));
  }
  HW_ASSIGN_OR_RETURN(const int64_t version, root.Int("headwise_plan"));
  if (version < 1 || version > HeadPlan::kVersion) {
    return Status::Unsupported(
        fmt::format("{}: plan version {}, this build reads versions up to {}", origin, version, HeadPlan::kVersion));
  }
  HW_RETURN_IF_ERROR(RefuseUnknownKeys(json, origin,
                                       {"headwise_plan", "model", "source_hash", "method", "parameters", "data_hash",
                                        "seed", "notes", "layers", "tokens", "scores", "report"}));
  HeadPlan plan;
  HW_ASSIGN_OR_RETURN(plan.shape, ReadShape(root));
  if (!root.Has("layers")) return Status::InvalidInput(fmt::format("{}: \"layers\" is missing", origin));
  HW_ASSIGN_OR_RETURN(plan.rules, ParseRuleTable(root.At("layers"), plan.shape, origin + ": \"layers\""));
  if (version == 1 && HasSelector(plan)) {
    return Status::InvalidInput(fmt::format(
        "{}: a head selects by score, which plans of version 1 do not know; expected \"headwise_plan\": 2", origin));
  }
  if (root.Has("tokens")) {
    HW_ASSIGN_OR_RETURN(plan.tokens, ParseTokenLists(root.At("tokens"), origin + ": \"tokens\""));
  }
  HW_RETURN_IF_ERROR(ReadProvenance(root, &plan));
  HW_RETURN_IF_ERROR(ValidatePlan(plan, origin));
  return plan;
}

Result<HeadPlan> ReadHeadPlan(const std::string& path) {
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseHeadPlan(text, path);
}

std::string SerializeHeadPlan(const HeadPlan& plan) {
  const ModelShape& shape = plan.shape;
  std::vector<std::string> notes;
  for (const std::string& note : plan.notes) notes.push_back(Quote(note));
  std::vector<std::string> layers;
  std::vector<std::string> scores;
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    std::vector<std::string> rules;
    std::vector<std::string> numbers;
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      rules.push_back(FormatHeadRule(plan.At(layer, kv_head)));
      if (plan.scores.empty()) continue;
      numbers.push_back(FormatNumber(plan.scores[static_cast<size_t>(layer * shape.num_kv_heads + kv_head)]));
    }
    layers.push_back(FormatLines(rules, "  "));
    if (!plan.scores.empty()) scores.push_back(fmt::format("[{}]", fmt::join(numbers, ", ")));
  }
  const Json parameters = Json::parse(plan.parameters_json, nullptr, false);
  std::string text = fmt::format("{{\n \"headwise_plan\": {},\n", HasSelector(plan) ? HeadPlan::kVersion : 1);
  text += fmt::format(
      " \"model\": {{\"architecture\": {}, \"num_layers\": {}, \"num_q_heads\": {}, \"num_kv_heads\": {}, "
      "\"head_dim\": {}}},\n",
      Quote(shape.architecture), shape.num_layers, shape.num_q_heads, shape.num_kv_heads, shape.head_dim);
  text += fmt::format(" \"source_hash\": {},\n \"method\": {},\n \"parameters\": {},\n", QuoteOrNull(plan.source_hash),
                      Quote(plan.method), parameters.dump(-1, ' ', false, Json::error_handler_t::replace));
  text += fmt::format(" \"data_hash\": {},\n \"seed\": {},\n \"notes\": {},\n", QuoteOrNull(plan.data_hash),
                      plan.seed ? fmt::format("{}", *plan.seed) : "null", FormatLines(notes, " "));
  text += fmt::format(" \"layers\": {},\n \"scores\": {},\n", FormatLines(layers, " "), FormatLines(scores, " "));
  if (!(plan.tokens == TokenLists{})) {
    text += fmt::format(" \"tokens\": {{\"special\": [{}],\n  \"punctuation\": [{}]}},\n",
                        fmt::join(plan.tokens.special, ", "), fmt::join(plan.tokens.punctuation, ", "));
  }
  text +=
      fmt::format(" \"report\": {}\n}}\n",
                  Json::parse(plan.report_json, nullptr, false).dump(-1, ' ', false, Json::error_handler_t::replace));
  return text;
}

Status WriteHeadPlan(const HeadPlan& plan, const std::string& path) {
  HW_RETURN_IF_ERROR(ValidatePlan(plan, path));
  return WriteFileAtomically(path, SerializeHeadPlan(plan));
}

}  // namespace headwise
