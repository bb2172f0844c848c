#include "eval/run_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/file.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

Status WrongType(const JsonObject& object, const char* key, const char* expected) {
  return Status::InvalidInput(
      fmt::format("{}: \"{}\" is {}, expected {}", object.origin(), key, object.At(key).dump(), expected));
}

// A required key whose value `is_right`; for the kinds of value that JsonObject has no getter for.
Result<Json> ValueOf(const JsonObject& object, const char* key, bool (Json::*is_right)() const noexcept,
                     const char* expected) {
  if (!object.Has(key)) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" is missing, expected {}", object.origin(), key, expected));
  }
  const Json& value = object.At(key);
  if (!(value.*is_right)()) return WrongType(object, key, expected);
  return value;
}

Result<std::vector<std::string>> StringsOf(const JsonObject& object, const char* key) {
  HW_ASSIGN_OR_RETURN(const Json list, ValueOf(object, key, &Json::is_array, "a list of texts"));
  std::vector<std::string> texts;
  for (const Json& item : list) {
    if (!item.is_string()) return WrongType(object, key, "a list of texts");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

// Which of `names` stands there.
Result<size_t> OneOf(const JsonObject& object, const char* key, std::span<const char* const> names) {
  HW_ASSIGN_OR_RETURN(const std::string value, object.String(key));
  const auto found = std::ranges::find(names, value);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  return Status::InvalidInput(
      fmt::format("{}: \"{}\" is \"{}\", expected \"{}\"", object.origin(), key, value, fmt::join(names, "\" or \"")));
}

// In the order of MetricInfo's.
constexpr const char* kBetterNames[] = {"higher", "lower"};
constexpr const char* kKindNames[] = {"rate", "mean", "geometric_mean"};

Json ToJson(const MetricInfo& metric) {
  return {{"name", metric.name},
          {"label", metric.label},
          {"unit", metric.unit},
          {"better", kBetterNames[static_cast<size_t>(metric.better)]},
          {"kind", kKindNames[static_cast<size_t>(metric.kind)]}};
}

Result<MetricInfo> MetricFromJson(const Json& json, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, origin));
  MetricInfo metric;
  HW_ASSIGN_OR_RETURN(metric.name, object.String("name"));
  HW_ASSIGN_OR_RETURN(metric.label, object.String("label"));
  HW_ASSIGN_OR_RETURN(metric.unit, object.String("unit"));
  HW_ASSIGN_OR_RETURN(const size_t better, OneOf(object, "better", kBetterNames));
  HW_ASSIGN_OR_RETURN(const size_t kind, OneOf(object, "kind", kKindNames));
  metric.better = static_cast<MetricInfo::Better>(better);
  metric.kind = static_cast<MetricInfo::Kind>(kind);
  return metric;
}

Json ToJson(const PlanInfo& plan) {
  Json files = Json::array();
  for (const auto& [length, file] : plan.files) files.push_back({{"length", length}, {"file", file}});
  return {{"name", plan.name},
          {"method", plan.method},
          {"kv_ratio", plan.kv_ratio ? Json(*plan.kv_ratio) : Json()},
          {"files", std::move(files)}};
}

// A folder that someone sent names files of its own and no others: they are read, and going on with a run writes them.
Status CheckInside(const std::string& file, const std::string& origin) {
  const fs::path path(file);
  const bool goes_up = std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (!file.empty() && path.is_relative() && !goes_up) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("{}: \"file\" is \"{}\", expected a path inside the run's folder", origin, file));
}

Result<PlanInfo> PlanFromJson(const Json& json, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, origin));
  PlanInfo plan;
  HW_ASSIGN_OR_RETURN(plan.name, object.String("name"));
  HW_ASSIGN_OR_RETURN(plan.method, object.String("method"));
  if (object.Has("kv_ratio")) {
    HW_ASSIGN_OR_RETURN(plan.kv_ratio, object.Double("kv_ratio"));
  }
  HW_ASSIGN_OR_RETURN(const Json files, ValueOf(object, "files", &Json::is_array, "a list of files"));
  for (const Json& item : files) {
    HW_ASSIGN_OR_RETURN(const JsonObject file, JsonObject::Of(item, origin + ": files"));
    HW_ASSIGN_OR_RETURN(const int64_t length, file.Int("length"));
    HW_ASSIGN_OR_RETURN(plan.files[length], file.String("file"));
    HW_RETURN_IF_ERROR(CheckInside(plan.files[length], file.origin()));
  }
  return plan;
}

Result<std::map<std::string, double>> ScoresOf(const JsonObject& object) {
  HW_ASSIGN_OR_RETURN(const JsonObject scores, object.Object("scores"));
  HW_ASSIGN_OR_RETURN(const Json items, ValueOf(object, "scores", &Json::is_object, "an object"));
  std::map<std::string, double> by_name;
  for (const auto& [name, value] : items.items()) {
    HW_ASSIGN_OR_RETURN(by_name[name], scores.Double(name.c_str()));
  }
  return by_name;
}

Result<std::map<std::string, Curve>> CurvesOf(const JsonObject& object) {
  std::map<std::string, Curve> curves;
  if (!object.Has("curves")) return curves;
  constexpr const char* kExpected = "an object of lists of [x, y]";
  HW_ASSIGN_OR_RETURN(const Json items, ValueOf(object, "curves", &Json::is_object, kExpected));
  for (const auto& [name, points] : items.items()) {
    if (!points.is_array()) return WrongType(object, "curves", kExpected);
    Curve& curve = curves[name];
    for (const Json& point : points) {
      if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number()) {
        return WrongType(object, "curves", kExpected);
      }
      curve.emplace_back(point[0].get<double>(), point[1].get<double>());
    }
  }
  return curves;
}

template <typename T>
Result<std::vector<T>> ReadLines(const fs::path& path, Result<T> (*parse)(const Json&, const std::string&)) {
  HW_ASSIGN_OR_RETURN(const std::vector<Json> lines, ReadCompleteLines(path));
  std::vector<T> parsed;
  for (const Json& line : lines) {
    HW_ASSIGN_OR_RETURN(T value, parse(line, fmt::format("{}:{}", path.string(), parsed.size() + 1)));
    parsed.push_back(std::move(value));
  }
  return parsed;
}

}  // namespace

Json ToJson(const RunInfo& info) {
  Json metrics = Json::array();
  for (const MetricInfo& metric : info.metrics) metrics.push_back(ToJson(metric));
  Json plans = Json::array();
  for (const PlanInfo& plan : info.plans) plans.push_back(ToJson(plan));
  Json json = {{"task", info.task},
               {"title", info.title},
               {"metrics", std::move(metrics)},
               {"model", info.model},
               {"source_hash", info.source_hash},
               {"plans", std::move(plans)},
               {"lengths", info.lengths},
               {"options", info.options},
               {"environment", info.environment}};
  if (!info.study.empty()) json["study"] = info.study;
  return json;
}

Json ToJson(const CaseText& text) {
  return {{"length", text.length},
          {"case", text.case_idx},
          {"question", text.question_idx},
          {"prompt", text.prompt},
          {"expected", text.expected}};
}

Json ToJson(const CaseResult& result) {
  Json json = {{"plan", result.plan},
               {"length", result.length},
               {"case", result.case_idx},
               {"question", result.question_idx},
               {"scores", result.scores},
               {"tags", result.tags},
               {"answer", result.answer},
               {"prompt_tokens", result.prompt_tokens},
               {"new_tokens", result.new_tokens},
               {"seconds", result.seconds},
               {"kv_bytes", result.kv_bytes},
               {"kv_peak_bytes", result.kv_peak_bytes},
               {"kv_read_bytes", result.kv_read_bytes}};
  for (const auto& [name, curve] : result.curves) {
    Json& points = json["curves"][name] = Json::array();
    for (const auto& [x, y] : curve) points.push_back({x, y});
  }
  if (!result.log_likelihoods.empty()) json["log_likelihoods"] = result.log_likelihoods;
  return json;
}

Result<RunInfo> RunInfoFromJson(const Json& json, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, origin));
  RunInfo info;
  HW_ASSIGN_OR_RETURN(info.task, object.String("task"));
  HW_ASSIGN_OR_RETURN(info.study, object.StringOr("study", ""));
  HW_ASSIGN_OR_RETURN(info.title, object.String("title"));
  HW_ASSIGN_OR_RETURN(const Json metrics, ValueOf(object, "metrics", &Json::is_array, "a list of metrics"));
  for (const Json& metric : metrics) {
    HW_ASSIGN_OR_RETURN(MetricInfo parsed, MetricFromJson(metric, origin + ": metrics"));
    info.metrics.push_back(std::move(parsed));
  }
  HW_ASSIGN_OR_RETURN(info.model, object.String("model"));
  HW_ASSIGN_OR_RETURN(info.source_hash, object.String("source_hash"));
  HW_ASSIGN_OR_RETURN(const Json plans, ValueOf(object, "plans", &Json::is_array, "a list of plans"));
  for (const Json& plan : plans) {
    HW_ASSIGN_OR_RETURN(PlanInfo parsed, PlanFromJson(plan, origin + ": plans"));
    info.plans.push_back(std::move(parsed));
  }
  HW_ASSIGN_OR_RETURN(const Json lengths, ValueOf(object, "lengths", &Json::is_array, "a list of numbers of tokens"));
  for (const Json& length : lengths) {
    if (!length.is_number_integer()) return WrongType(object, "lengths", "a list of numbers of tokens");
    info.lengths.push_back(length.get<int64_t>());
  }
  HW_ASSIGN_OR_RETURN(info.options, ValueOf(object, "options", &Json::is_object, "an object"));
  HW_ASSIGN_OR_RETURN(info.environment, ValueOf(object, "environment", &Json::is_object, "an object"));
  return info;
}

Result<CaseText> CaseTextFromJson(const Json& json, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, origin));
  CaseText text;
  HW_ASSIGN_OR_RETURN(text.length, object.Int("length"));
  HW_ASSIGN_OR_RETURN(text.case_idx, object.Int("case"));
  HW_ASSIGN_OR_RETURN(text.question_idx, object.Int("question"));
  HW_ASSIGN_OR_RETURN(text.prompt, object.String("prompt"));
  HW_ASSIGN_OR_RETURN(text.expected, StringsOf(object, "expected"));
  return text;
}

Result<CaseResult> CaseResultFromJson(const Json& json, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, origin));
  CaseResult result;
  HW_ASSIGN_OR_RETURN(result.plan, object.String("plan"));
  HW_ASSIGN_OR_RETURN(result.length, object.Int("length"));
  HW_ASSIGN_OR_RETURN(result.case_idx, object.Int("case"));
  HW_ASSIGN_OR_RETURN(result.question_idx, object.Int("question"));
  HW_ASSIGN_OR_RETURN(result.scores, ScoresOf(object));
  HW_ASSIGN_OR_RETURN(result.tags, ValueOf(object, "tags", &Json::is_object, "an object"));
  HW_ASSIGN_OR_RETURN(result.answer, object.String("answer"));
  HW_ASSIGN_OR_RETURN(result.curves, CurvesOf(object));
  if (object.Has("log_likelihoods")) {
    HW_ASSIGN_OR_RETURN(result.log_likelihoods, object.Doubles("log_likelihoods"));
  }
  HW_ASSIGN_OR_RETURN(result.prompt_tokens, object.Int("prompt_tokens"));
  HW_ASSIGN_OR_RETURN(result.new_tokens, object.Int("new_tokens"));
  HW_ASSIGN_OR_RETURN(result.seconds, object.Double("seconds"));
  HW_ASSIGN_OR_RETURN(result.kv_bytes, object.Int("kv_bytes"));
  HW_ASSIGN_OR_RETURN(result.kv_peak_bytes, object.Int("kv_peak_bytes"));
  // Runs from before plans could read less than they keep do not say so.
  HW_ASSIGN_OR_RETURN(result.kv_read_bytes, object.IntOr("kv_read_bytes", result.kv_bytes));
  return result;
}

Result<std::vector<Json>> ReadCompleteLines(const fs::path& path) {
  std::vector<Json> lines;
  std::error_code error;
  if (!fs::exists(path, error)) return lines;
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string where = fmt::format("{}:{}", path.string(), lines.size() + 1);
    HW_ASSIGN_OR_RETURN(Json line, ParseJson(std::string_view(text).substr(begin, end - begin), where));
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

Result<RunData> ReadRun(const fs::path& folder) {
  RunData run;
  run.folder = folder;
  const std::string manifest = (folder / kManifestFile).string();
  HW_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(manifest));
  HW_ASSIGN_OR_RETURN(run.info, RunInfoFromJson(json, manifest));
  HW_ASSIGN_OR_RETURN(run.results, ReadLines<CaseResult>(folder / kResultsFile, CaseResultFromJson));
  return run;
}

Result<std::vector<CaseText>> ReadCaseTexts(const fs::path& folder) {
  return ReadLines<CaseText>(folder / kCasesFile, CaseTextFromJson);
}

}  // namespace headwise
