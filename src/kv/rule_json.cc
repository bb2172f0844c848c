#include "kv/rule_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace headwise {
namespace {

Status ReadRecent(const JsonObject& object, HeadRule* rule) {
  if (!object.Has("recent") || !object.At("recent").is_object()) {
    rule->kind = HeadRule::Kind::kStream;
    HW_ASSIGN_OR_RETURN(rule->recent, object.Int("recent"));
    return Status::Ok();
  }
  HW_ASSIGN_OR_RETURN(const JsonObject recent, object.Object("recent"));
  const bool is_moa = recent.Has("alpha") || recent.Has("beta");
  const bool is_razor = recent.Has("min") || recent.Has("divisor");
  if (is_moa == is_razor) {
    return Status::InvalidInput(
        fmt::format("{}: expected either \"alpha\" and \"beta\" or \"min\" and \"divisor\", found {}", recent.origin(),
                    is_moa ? "both" : "neither"));
  }
  if (is_moa) {
    rule->kind = HeadRule::Kind::kElasticMoa;
    HW_RETURN_IF_ERROR(RefuseUnknownKeys(object.At("recent"), recent.origin(), {"alpha", "beta"}));
    HW_ASSIGN_OR_RETURN(rule->alpha, recent.Double("alpha"));
    HW_ASSIGN_OR_RETURN(rule->beta, recent.Double("beta"));
  } else {
    rule->kind = HeadRule::Kind::kElasticRazor;
    HW_RETURN_IF_ERROR(RefuseUnknownKeys(object.At("recent"), recent.origin(), {"min", "divisor"}));
    HW_ASSIGN_OR_RETURN(rule->min_recent, recent.Int("min"));
    HW_ASSIGN_OR_RETURN(rule->divisor, recent.Double("divisor"));
  }
  return Status::Ok();
}

// A string with exactly two allowed values; true for `second`.
Result<bool> ReadChoice(const JsonObject& object, const char* key, std::pair<const char*, const char*> choice) {
  HW_ASSIGN_OR_RETURN(const std::string found, object.StringOr(key, choice.first));
  if (found != choice.first && found != choice.second) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" is \"{}\", expected \"{}\" or \"{}\"", object.origin(), key,
                                            found, choice.first, choice.second));
  }
  return found == choice.second;
}

using SelectorKind = TokenSelector::Kind;

constexpr std::pair<SelectorKind, std::string_view> kSelectors[] = {
    {SelectorKind::kH2o, "h2o"},         {SelectorKind::kFastGen, "fastgen"},   {SelectorKind::kTova, "tova"},
    {SelectorKind::kSnapKv, "snapkv"},   {SelectorKind::kAdaKv, "adakv"},       {SelectorKind::kKeyNorm, "knorm"},
    {SelectorKind::kKeyDiff, "keydiff"}, {SelectorKind::kExpected, "expected"}, {SelectorKind::kQuest, "quest"},
    {SelectorKind::kInfLlm, "infllm"}};

// {"by": "h2o", "recent_share": 0.5}, {"by": "fastgen", "recent_share": 0.5, "punctuation": true}, {"by": "tova"},
// {"by": "snapkv", "window": 32, "kernel": 7, "pooling": "max"},
// {"by": "adakv", "window": 32, "kernel": 7, "pooling": "max", "floor": 0.2}, {"by": "knorm"}, {"by": "keydiff"},
// {"by": "expected", "window": 32, "epsilon": 0}, {"by": "quest", "block": 16},
// {"by": "infllm", "recent_share": 0.5, "block": 32, "representatives": 4}
Result<TokenSelector> ReadSelector(const JsonObject& rule) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, rule.Object("select"));
  HW_ASSIGN_OR_RETURN(const std::string by, object.String("by"));
  const Json& value = rule.At("select");
  const auto known = std::ranges::find(kSelectors, by, &std::pair<SelectorKind, std::string_view>::second);
  if (known == std::end(kSelectors)) {
    return Status::InvalidInput(
        fmt::format("{}: \"by\" is \"{}\", expected \"h2o\", \"fastgen\", \"tova\", \"snapkv\", \"adakv\", \"knorm\", "
                    "\"keydiff\", \"expected\", \"quest\" or \"infllm\"",
                    object.origin(), by));
  }
  TokenSelector selector;
  selector.kind = known->first;
  const auto refuse_others = [&](std::initializer_list<std::string_view> options) {
    return RefuseUnknownKeys(value, object.origin(), options);
  };
  if (selector.PoolsSums()) {
    if (selector.kind == SelectorKind::kAdaKv) {
      HW_RETURN_IF_ERROR(refuse_others({"by", "window", "kernel", "pooling", "floor"}));
      HW_ASSIGN_OR_RETURN(selector.floor, object.DoubleOr("floor", selector.floor));
    } else {
      HW_RETURN_IF_ERROR(refuse_others({"by", "window", "kernel", "pooling"}));
    }
    HW_ASSIGN_OR_RETURN(selector.kernel, object.IntOr("kernel", selector.kernel));
    HW_ASSIGN_OR_RETURN(const bool is_mean, ReadChoice(object, "pooling", {"max", "mean"}));
    if (is_mean) selector.pooling = TokenSelector::Pooling::kMean;
  } else if (selector.SumsAll()) {
    if (selector.kind == SelectorKind::kFastGen) {
      HW_RETURN_IF_ERROR(refuse_others({"by", "recent_share", "punctuation"}));
      HW_ASSIGN_OR_RETURN(selector.punctuation, object.BoolOr("punctuation", selector.punctuation));
    } else {
      HW_RETURN_IF_ERROR(refuse_others({"by", "recent_share"}));
    }
    HW_ASSIGN_OR_RETURN(selector.recent_share, object.DoubleOr("recent_share", selector.recent_share));
  } else if (selector.kind == SelectorKind::kInfLlm) {
    HW_RETURN_IF_ERROR(refuse_others({"by", "recent_share", "block", "representatives"}));
    HW_ASSIGN_OR_RETURN(selector.recent_share, object.DoubleOr("recent_share", selector.recent_share));
    HW_ASSIGN_OR_RETURN(selector.block, object.IntOr("block", 32));
    HW_ASSIGN_OR_RETURN(selector.representatives, object.IntOr("representatives", selector.representatives));
  } else if (selector.kind == SelectorKind::kQuest) {
    HW_RETURN_IF_ERROR(refuse_others({"by", "block"}));
    HW_ASSIGN_OR_RETURN(selector.block, object.IntOr("block", selector.block));
  } else if (selector.kind == SelectorKind::kExpected) {
    HW_RETURN_IF_ERROR(refuse_others({"by", "window", "epsilon"}));
    HW_ASSIGN_OR_RETURN(selector.epsilon, object.DoubleOr("epsilon", selector.epsilon));
  } else {
    HW_RETURN_IF_ERROR(refuse_others({"by"}));
  }
  if (selector.CutsOnce()) {
    HW_ASSIGN_OR_RETURN(selector.window, object.IntOr("window", selector.window));
  }
  return selector;
}

std::string FormatSelector(const TokenSelector& selector) {
  std::string options;
  if (selector.HasRecentShare()) {
    options = fmt::format(R"(, "recent_share": {})", FormatNumber(selector.recent_share));
  } else if (selector.CutsOnce()) {
    options = fmt::format(R"(, "window": {})", selector.window);
  }
  if (selector.PoolsSums()) {
    options += fmt::format(R"(, "kernel": {}, "pooling": "{}")", selector.kernel,
                           selector.pooling == TokenSelector::Pooling::kMean ? "mean" : "max");
  }
  if (selector.kind == SelectorKind::kExpected) {
    options += fmt::format(R"(, "epsilon": {})", FormatNumber(selector.epsilon));
  }
  if (selector.kind == SelectorKind::kFastGen) options += fmt::format(R"(, "punctuation": {})", selector.punctuation);
  if (selector.ReadsBlocks()) options += fmt::format(R"(, "block": {})", selector.block);
  if (selector.kind == SelectorKind::kInfLlm) {
    options += fmt::format(R"(, "representatives": {})", selector.representatives);
  }
  if (selector.kind == SelectorKind::kAdaKv) options += fmt::format(R"(, "floor": {})", FormatNumber(selector.floor));
  const auto known = std::ranges::find(kSelectors, selector.kind, &std::pair<SelectorKind, std::string_view>::first);
  return fmt::format(R"(, "select": {{"by": "{}"{}}})", known->second, options);
}

Result<std::vector<int32_t>> ReadIds(const JsonObject& tokens, const char* key) {
  std::vector<int32_t> ids;
  if (!tokens.Has(key)) return ids;
  const auto is_id = [](const Json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() <= uint64_t{std::numeric_limits<int32_t>::max()};
  };
  const Json& list = tokens.At(key);
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_id)) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" is not a list of token ids", tokens.origin(), key));
  }
  for (const Json& id : list) ids.push_back(id.get<int32_t>());
  return ids;
}

}  // namespace

Status RefuseUnknownKeys(const Json& object, std::string_view origin, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    return Status::InvalidInput(
        fmt::format("{}: the key \"{}\" is not known; expected only {}", origin, key, fmt::join(known, ", ")));
  }
  return Status::Ok();
}

Result<TokenLists> ParseTokenLists(const Json& value, std::string_view origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject lists, JsonObject::Of(value, origin));
  HW_RETURN_IF_ERROR(RefuseUnknownKeys(value, origin, {"special", "punctuation"}));
  TokenLists tokens;
  HW_ASSIGN_OR_RETURN(tokens.special, ReadIds(lists, "special"));
  HW_ASSIGN_OR_RETURN(tokens.punctuation, ReadIds(lists, "punctuation"));
  return tokens;
}

Result<HeadRule> ParseHeadRule(const Json& value, std::string_view origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, origin));
  HW_ASSIGN_OR_RETURN(const bool full, object.Bool("full"));
  if (full) {
    if (value.size() == 1) return HeadRule::Full();
    const auto other =
        std::find_if(value.items().begin(), value.items().end(), [](const auto& item) { return item.key() != "full"; });
    return Status::InvalidInput(fmt::format(
        "{}: a full head keeps every token, so \"{}\" means nothing beside \"full\": true", origin, other.key()));
  }
  HW_RETURN_IF_ERROR(
      RefuseUnknownKeys(value, origin, {"full", "sink", "recent", "positions", "from", "compensate", "select"}));
  HeadRule rule;
  HW_ASSIGN_OR_RETURN(rule.sink, object.Int("sink"));
  HW_RETURN_IF_ERROR(ReadRecent(object, &rule));
  HW_ASSIGN_OR_RETURN(const bool in_cache, ReadChoice(object, "positions", {"text", "cache"}));
  HW_ASSIGN_OR_RETURN(const bool after_prompt, ReadChoice(object, "from", {"first_token", "end_of_prompt"}));
  if (in_cache) rule.positions = Positions::kCache;
  if (after_prompt) rule.start = RuleStart::kEndOfPrompt;
  HW_ASSIGN_OR_RETURN(rule.compensate, object.BoolOr("compensate", false));
  if (object.Has("select")) {
    HW_ASSIGN_OR_RETURN(rule.select, ReadSelector(object));
  }
  HW_RETURN_IF_ERROR(ValidateRule(rule).Annotate(origin));
  return rule;
}

Result<std::vector<HeadRule>> ParseRuleTable(const Json& value, const ModelShape& shape, std::string_view origin) {
  if (!value.is_array() || static_cast<int64_t>(value.size()) != shape.num_layers) {
    return Status::InvalidInput(fmt::format(
        "{}: found {}, expected one list per layer, {} in all", origin,
        value.is_array() ? fmt::format("a list of {}", value.size()) : fmt::format("a JSON {}", value.type_name()),
        shape.num_layers));
  }
  std::vector<HeadRule> rules;
  for (size_t layer = 0; layer < value.size(); ++layer) {
    const Json& row = value[layer];
    if (!row.is_array() || static_cast<int64_t>(row.size()) != shape.num_kv_heads) {
      return Status::InvalidInput(fmt::format(
          "{}: layer {} holds {}, expected one rule per KV head, {} in all", origin, layer,
          row.is_array() ? fmt::format("a list of {}", row.size()) : fmt::format("a JSON {}", row.type_name()),
          shape.num_kv_heads));
    }
    for (size_t kv_head = 0; kv_head < row.size(); ++kv_head) {
      HW_ASSIGN_OR_RETURN(HeadRule rule,
                          ParseHeadRule(row[kv_head], fmt::format("{}: layer {}, KV head {}", origin, layer, kv_head)));
      rules.push_back(rule);
    }
  }
  return rules;
}

std::string FormatNumber(double value) {
  return Json(value).dump();
}

std::string FormatHeadRule(const HeadRule& rule) {
  std::string recent;
  switch (rule.kind) {
    case HeadRule::Kind::kFull:
      return R"({"full": true})";
    case HeadRule::Kind::kStream:
      recent = fmt::format("{}", rule.recent);
      break;
    case HeadRule::Kind::kElasticMoa:
      recent = fmt::format(R"({{"alpha": {}, "beta": {}}})", FormatNumber(rule.alpha), FormatNumber(rule.beta));
      break;
    case HeadRule::Kind::kElasticRazor:
      recent = fmt::format(R"({{"min": {}, "divisor": {}}})", rule.min_recent, FormatNumber(rule.divisor));
      break;
  }
  return fmt::format(
      R"({{"full": false, "sink": {}, "recent": {}, "positions": "{}", "from": "{}", "compensate": {}{}}})", rule.sink,
      recent, rule.positions == Positions::kCache ? "cache" : "text",
      rule.start == RuleStart::kEndOfPrompt ? "end_of_prompt" : "first_token", rule.compensate,
      rule.HasSelector() ? FormatSelector(rule.select) : "");
}

}  // namespace headwise
