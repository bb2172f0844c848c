// headwise inspect: a model, a plan or both, without loading: shapes, the plan as a map, KV bytes at given lengths, and
// what would be refused.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/all_backends.h"
#include "backend/kv_format.h"
#include "base/file.h"
#include "base/json.h"
#include "commands.h"
#include "common_options.h"
#include "engine/model_preview.h"
#include "inspect_fit.h"
#include "kv/kv_bytes.h"
#include "kv/plan_svg.h"
#include "kv/plan_view.h"
#include "kv/rule_json.h"
#include "model/model_config.h"
#include "option_checks.h"
#include "preset_options.h"

namespace headwise {
namespace {

struct InspectOptions {
  EngineOptions engine;
  PresetFlags preset;
  std::string plan;
  std::string svg;
  std::vector<int64_t> lengths = {1024, 8192, 32768, 131072};
  int64_t fit_bytes = 0;  // 0: not asked
  bool json = false;
};

// What there is to look at. Without a model its shape is the plan's.
struct Subject {
  std::unique_ptr<ModelPreview> model;  // null without --model
  ModelShape shape;
  std::shared_ptr<const HeadPlan> plan;  // null without --plan
  std::string plan_refusal;              // why the model would not take the plan; empty if it would
  int64_t page_tokens = 0;
  PageSizes full_pages;
  PageSizes bounded_pages;
};

Status SetPageSizes(const EngineOptions& options, Subject& subject) {
  HW_ASSIGN_OR_RETURN(const KvFormats formats, KvFormatsByName(options.kv_dtype));
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                      MakeBackend({.name = options.backend, .isa = options.isa, .num_threads = 1}));
  HW_ASSIGN_OR_RETURN(subject.page_tokens, PageTokensFor(options.page_tokens, formats.full));
  KvLayout layout{.head_dim = subject.shape.head_dim, .page_tokens = subject.page_tokens, .format = formats.full};
  subject.full_pages = PageSizesOf(*backend, layout);
  layout.format = formats.bounded;
  subject.bounded_pages = PageSizesOf(*backend, layout);
  return Status::Ok();
}

Result<Subject> LoadSubject(const InspectOptions& options) {
  Subject subject;
  if (!options.engine.model.empty()) {
    HW_ASSIGN_OR_RETURN(subject.model, ModelPreview::Open(options.engine));
    subject.shape = subject.model->config().shape();
  }
  if (!options.plan.empty()) {
    HW_ASSIGN_OR_RETURN(HeadPlan plan, ReadHeadPlan(options.plan));
    if (subject.model == nullptr) {
      subject.shape = plan.shape;
    } else {
      subject.plan_refusal = CheckPlanFits(plan, subject.shape, options.plan).message();
    }
    subject.plan = std::make_shared<const HeadPlan>(std::move(plan));
  }
  HW_RETURN_IF_ERROR(SetPageSizes(options.engine, subject));
  return subject;
}

// ---- KV bytes ----

struct LengthReport {
  int64_t tokens = 0;
  KvBytes kv;               // after a prompt of this many tokens
  int64_t dense_bytes = 0;  // the same with every head full
  int64_t peak_bytes = 0;   // while it was read
  std::string refusal;      // empty if it would run
};

Result<LengthReport> ReportLength(const InspectOptions& options, const Subject& subject, int64_t tokens) {
  HW_RETURN_IF_ERROR(CheckRange("--lengths", tokens, 1, kMaxSequenceTokens));
  const HeadPlan dense = HeadPlan::Dense(subject.shape);
  KvBytesArgs args{.plan = &dense,
                   .limits = {.prompt_tokens = tokens, .max_tokens = tokens},
                   .chunk_tokens = options.engine.chunk_tokens,
                   .page_tokens = subject.page_tokens,
                   .full_pages = subject.full_pages,
                   .bounded_pages = subject.bounded_pages};
  LengthReport report;
  report.tokens = tokens;
  report.dense_bytes = PlanKvBytes(args, tokens).total();
  if (subject.plan != nullptr) args.plan = subject.plan.get();
  if (subject.model != nullptr) args.windows = LayerWindowsOf(subject.model->config());
  report.kv = PlanKvBytes(args, tokens);
  report.peak_bytes = PeakKvBytes(args);
  if (subject.model != nullptr && subject.plan_refusal.empty()) {
    const SequenceOptions sequence{.plan = subject.plan, .prompt_tokens = tokens, .max_tokens = tokens};
    report.refusal = subject.model->Check(sequence).message();
  }
  return report;
}

// ---- output ----

const char* NameOf(PositionKind positions) {
  switch (positions) {
    case PositionKind::kRope:
      return "rope";
    case PositionKind::kAlibi:
      return "alibi";
    case PositionKind::kLearned:
      return "learned";
  }
  return "unknown";
}

Json ModelJson(const InspectOptions& options, const ModelPreview& model) {
  const ModelConfig& config = model.config();
  Json json = {{"path", options.engine.model},
               {"architecture", config.family},
               {"layers", config.num_layers},
               {"q_heads", config.num_q_heads},
               {"kv_heads", config.num_kv_heads},
               {"head_dim", config.head_dim},
               {"model_dim", config.model_dim},
               {"ffn_dim", config.ffn_dim},
               {"vocab_size", config.vocab_size},
               {"trained_length", config.trained_length},
               {"positions", NameOf(config.positions)},
               {"source_hash", model.source_hash()},
               {"has_tokenizer", model.has_tokenizer()},
               {"runs", true},
               {"backend", model.backend().Description()}};
  if (config.AnyExperts()) {
    json["experts"] = {{"num_experts", config.experts.num_experts},
                       {"num_chosen", config.experts.num_chosen},
                       {"ffn_dim", config.experts.ffn_dim},
                       {"shared_ffn_dim", config.experts.shared_ffn_dim},
                       {"layers", std::ranges::count(config.layers, true, &LayerConfig::has_experts)},
                       {"bytes", model.expert_bytes()},
                       {"bytes_of_token", model.chosen_expert_bytes()},
                       {"weight_bytes", model.weight_bytes()}};
  }
  json["sliding_windows"] = Json::array();
  json["rope_thetas"] = Json::array();
  for (const LayerConfig& layer : config.layers) {
    json["sliding_windows"].push_back(layer.window ? Json(*layer.window) : Json());
    json["rope_thetas"].push_back(layer.rope ? Json(config.ropes[static_cast<size_t>(*layer.rope)].theta) : Json());
  }
  return json;
}

Json PlanJson(const InspectOptions& options, const HeadPlan& plan) {
  Json rules = Json::array();
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    Json row = Json::array();
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      row.push_back(Json::parse(FormatHeadRule(plan.At(layer_idx, kv_head)), nullptr, false));
    }
    rules.push_back(std::move(row));
  }
  return {{"path", options.plan},
          {"method", plan.method},
          {"parameters", Json::parse(plan.parameters_json, nullptr, false)},
          {"notes", plan.notes},
          {"scores", plan.scores},
          {"report", Json::parse(plan.report_json, nullptr, false)},
          {"rules", std::move(rules)}};
}

Json LengthJson(const LengthReport& report) {
  return {{"tokens", report.tokens},
          {"kv_bytes", report.kv.total()},
          {"kv_bytes_full", report.kv.full},
          {"kv_bytes_bounded", report.kv.bounded},
          {"kept_tokens", report.kv.kept_tokens},
          {"kv_bytes_read", report.kv.read},
          {"kv_bytes_dense", report.dense_bytes},
          {"kv_peak_bytes", report.peak_bytes}};
}

Json Refusals(const Subject& subject, const std::vector<LengthReport>& reports) {
  Json refusals = Json::array();
  if (!subject.plan_refusal.empty()) refusals.push_back(subject.plan_refusal);
  for (const LengthReport& report : reports) {
    if (!report.refusal.empty()) refusals.push_back(fmt::format("{} tokens: {}", report.tokens, report.refusal));
  }
  return refusals;
}

// " in 15 of 18 layers", or nothing for all of them.
std::string InLayers(int64_t num_layers, const ModelConfig& config) {
  return num_layers == config.num_layers ? "" : fmt::format(" in {} of {} layers", num_layers, config.num_layers);
}

// "RoPE", or where layers differ "RoPE of theta 10000 in 15 of 18 layers, RoPE of theta 1e+06 in 3 of 18 layers".
std::string PositionsText(const ModelConfig& config) {
  if (config.positions == PositionKind::kAlibi) return "ALiBi";
  if (config.positions == PositionKind::kLearned) return fmt::format("{} learned positions", config.num_positions);
  std::vector<int64_t> num_layers(config.ropes.size());
  for (const LayerConfig& layer : config.layers) {
    if (layer.rope) ++num_layers[static_cast<size_t>(*layer.rope)];
  }
  std::string text;
  for (size_t i = 0; i < config.ropes.size(); ++i) {
    const std::string theta = config.ropes.size() > 1 ? fmt::format(" of theta {:g}", config.ropes[i].theta) : "";
    text += fmt::format("{}RoPE{}{}", i == 0 ? "" : ", ", theta, InLayers(num_layers[i], config));
  }
  return text.empty() ? "no positions" : text;
}

// ", sliding window 512 in 15 of 18 layers", or nothing.
std::string WindowsText(const ModelConfig& config) {
  std::map<int64_t, int64_t> num_layers;
  for (const LayerConfig& layer : config.layers) {
    if (layer.window) ++num_layers[*layer.window];
  }
  std::string text;
  for (const auto& [window, count] : num_layers) {
    text += fmt::format(", sliding window {}{}", window, InLayers(count, config));
  }
  return text;
}

// "window    512 in layers 0-4, 6-10: ...", a line for each window that layers have beside the plan's rules.
std::string WindowedLayersText(const ModelConfig& config) {
  std::map<int64_t, std::vector<int64_t>> layers;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    if (const auto window = config.layer(i).window) layers[*window].push_back(i);
  }
  std::string text;
  for (const auto& [window, of_window] : layers) {
    std::string runs;
    for (size_t i = 0; i < of_window.size();) {
      size_t end = i + 1;
      while (end < of_window.size() && of_window[end] == of_window[end - 1] + 1) ++end;
      runs += fmt::format("{}{}", runs.empty() ? "" : ", ", of_window[i]);
      if (end - i > 1) runs += fmt::format("-{}", of_window[end - 1]);
      i = end;
    }
    text += fmt::format("window    the model's own, {} tokens, in layers {}: no head of these reads further\n", window,
                        runs);
  }
  return text;
}

// Empty without experts.
std::string ExpertsText(const ModelPreview& model) {
  const ModelConfig& config = model.config();
  const ExpertsConfig& experts = config.experts;
  if (!config.AnyExperts()) return "";
  const auto num_layers = std::ranges::count(config.layers, true, &LayerConfig::has_experts);
  std::string text = fmt::format(
      "          {} of {} experts of {} in {} layers{}\n", experts.num_chosen, experts.num_experts, experts.ffn_dim,
      num_layers, experts.shared_ffn_dim > 0 ? fmt::format(", and one of {} for all", experts.shared_ffn_dim) : "");
  text += fmt::format("          experts are {} of {} of weights, of which a token goes through {}\n",
                      FormatBytes(model.expert_bytes()), FormatBytes(model.weight_bytes()),
                      FormatBytes(model.chosen_expert_bytes()));
  return text;
}

std::string ModelText(const InspectOptions& options, const ModelPreview& model) {
  const ModelConfig& config = model.config();
  std::string text =
      fmt::format("model     {}: {}, {} layers, {} query heads, {} KV heads of {}\n", options.engine.model,
                  config.family, config.num_layers, config.num_q_heads, config.num_kv_heads, config.head_dim);
  text +=
      fmt::format("          model dim {}, ffn {}, vocabulary {}, trained on {} tokens, {}{}\n", config.model_dim,
                  config.ffn_dim, config.vocab_size, config.trained_length, PositionsText(config), WindowsText(config));
  text += ExpertsText(model);
  text += fmt::format("          hash {}\n", model.source_hash());
  text += fmt::format("          runs: every key and tensor is there{}\n",
                      model.has_tokenizer() ? ", a tokenizer too" : "; on ids alone, there is no tokenizer");
  text += fmt::format("backend   {}\n", model.backend().Description());
  return text;
}

std::string LengthsText(const InspectOptions& options, const Subject& subject,
                        const std::vector<LengthReport>& reports) {
  // Of heads that read few of the tokens that they keep: what a decoding query reads.
  const bool reads_few = subject.plan != nullptr && std::ranges::any_of(subject.plan->rules, &HeadRule::ReadsBlocks);
  std::string text = fmt::format("\nKV cache in {}, pages of {} tokens\n{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>8}{}\n",
                                 options.engine.kv_dtype, subject.page_tokens, "tokens", "KV bytes", "full heads",
                                 "bounded", "at peak", "all full", "share", reads_few ? "    read by a query" : "");
  const auto share_of = [](int64_t part, int64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  for (const LengthReport& report : reports) {
    text += fmt::format(
        "{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>7.1f}%{}\n", report.tokens, FormatBytes(report.kv.total()),
        FormatBytes(report.kv.full), FormatBytes(report.kv.bounded), FormatBytes(report.peak_bytes),
        FormatBytes(report.dense_bytes), share_of(report.kv.total(), report.dense_bytes),
        reads_few
            ? fmt::format("{:>12}{:>6.1f}%", FormatBytes(report.kv.read), share_of(report.kv.read, report.dense_bytes))
            : "");
  }
  return text;
}

Status PrintInspectJson(const InspectOptions& options, const Subject& subject, const std::vector<LengthReport>& reports,
                        const std::optional<FitReport>& fit, const std::optional<PresetReport>& preset) {
  Json json = {{"model", Json()}, {"plan", Json()}, {"kv", Json::array()}};
  if (subject.model != nullptr) json["model"] = ModelJson(options, *subject.model);
  if (subject.plan != nullptr) json["plan"] = PlanJson(options, *subject.plan);
  for (const LengthReport& report : reports) json["kv"].push_back(LengthJson(report));
  json["refused"] = Refusals(subject, reports);
  if (fit) json["fit"] = FitJson(*fit);
  if (preset) json["preset"] = PresetJson(*preset);
  return PrintJson(json);
}

// What --preset chooses in so much memory, or in what is free; fills in what it leaves to be looked at.
Result<std::optional<PresetReport>> TakePreset(InspectOptions& options) {
  if (!options.preset) return std::optional<PresetReport>();
  if (options.engine.model.empty()) {
    return Status::InvalidInput("--preset: a model's weights take memory too, expected --model");
  }
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<ModelPreview> model, ModelPreview::Open(options.engine));
  HW_ASSIGN_OR_RETURN(
      PresetReport report,
      MakePreset(options.preset, {.plan = options.plan, .memory_bytes = options.fit_bytes}, options.engine, *model));
  options.engine.kv_dtype = NameOf(report.choice.chosen.formats);
  options.plan = report.plan() == kFullPlan ? "" : report.plan();
  return std::optional<PresetReport>(std::move(report));
}

Status RunInspect(const InspectOptions& given) {
  InspectOptions options = given;
  HW_ASSIGN_OR_RETURN(const std::optional<PresetReport> preset, TakePreset(options));
  HW_ASSIGN_OR_RETURN(const Subject subject, LoadSubject(options));
  std::vector<LengthReport> reports;
  for (const int64_t tokens : options.lengths) {
    HW_ASSIGN_OR_RETURN(LengthReport report, ReportLength(options, subject, tokens));
    reports.push_back(std::move(report));
  }
  if (!options.svg.empty()) {
    if (subject.plan == nullptr) return Status::InvalidInput("--svg: draws a plan, expected --plan");
    HW_RETURN_IF_ERROR(WriteFileAtomically(options.svg, PlanSvg(*subject.plan)));
  }
  std::optional<FitReport> fit;
  if (options.fit_bytes > 0) {
    if (subject.model == nullptr) {
      return Status::InvalidInput("--fit: a model's weights take memory too, expected --model");
    }
    const bool has_plan = subject.plan != nullptr && subject.plan_refusal.empty();
    HW_ASSIGN_OR_RETURN(fit, ReportFit(options.engine, *subject.model, has_plan ? subject.plan : nullptr, options.plan,
                                       options.fit_bytes));
  }
  if (options.json) return PrintInspectJson(options, subject, reports, fit, preset);
  std::string text;
  if (subject.model != nullptr) text += ModelText(options, *subject.model);
  if (subject.plan != nullptr) {
    text += fmt::format("plan      {}\n{}", options.plan, FormatPlanMap(*subject.plan));
    if (subject.model != nullptr) text += WindowedLayersText(subject.model->config());
    text += FormatScoreMap(*subject.plan);
    for (const std::string& note : subject.plan->notes) text += fmt::format("note      {}\n", note);
  }
  text += LengthsText(options, subject, reports);
  if (fit) text += FitText(*fit);
  if (preset) text += "\n" + PresetText(*preset);
  for (const Json& refusal : Refusals(subject, reports)) {
    text += fmt::format("refused   {}\n", refusal.get<std::string>());
  }
  PrintText(text);
  return CheckOutput();
}

}  // namespace

void AddInspectCommand(CommandLine& line) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App& command = *line.app.add_subcommand("inspect", "Show a model, a plan, and the KV bytes they take");
  AddEngineOptions(command, options->engine);
  command.get_option("--model")->required(false);
  command.add_option("--plan", options->plan, "Head plan; every head full without one");
  AddPresetOptions(command, options->preset);
  command.add_option("--svg", options->svg, "Draw the plan into this file");
  command.add_option("--lengths", options->lengths, "Text lengths in tokens: 1024,8192")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  AddBytesOption(command, "--fit", options->fit_bytes,
                 "Memory: how many tokens of how many conversations fit, by plan and cache format; 0: not asked");
  command.add_flag("--json", options->json, "One JSON object on standard output");
  // Either is enough; with neither there is nothing to show.
  command.callback([&line, options] {
    if (options->engine.model.empty() && options->plan.empty()) throw CLI::RequiredError("--model or --plan");
    line.run = [options] { return RunInspect(*options); };
  });
}

}  // namespace headwise
