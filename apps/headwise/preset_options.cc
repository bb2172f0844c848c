#include "preset_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "backend/all_backends.h"
#include "base/format_bytes.h"
#include "engine/read_plan.h"
#include "inspect_fit.h"
#include "model/gguf_model.h"
#include "text/escape.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

// What is left to others of what is free: of the host's memory a sixteenth, of a GPU's at least what its backend keeps
// for itself besides (64 MiB for weights that are unpacked, 512 for pages that are, 256 for experts' outputs).
constexpr int64_t kReserveShare = 16;
constexpr int64_t kGpuReserveBytes = int64_t{1} << 30;

// The finest first: of choices that hold as much and lose as much, the first is taken.
constexpr const char* kFormats[] = {"f16", "q8,f16", "q8", "q4,f16", "q4,q8", "q4"};

// Plans that lie beside a model are called as it is, with a dash and more behind: models/m-razor.json of models/m or
// models/m.gguf.
std::vector<std::string> PathsBeside(const std::string& model) {
  fs::path path = fs::path(model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string begin = (IsGgufPath(model) ? path.stem() : path.filename()).string() + "-";
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (name.starts_with(begin) && name.ends_with(".json")) {
      paths.push_back(path.has_parent_path() ? (folder / name).string() : name);
    }
  }
  std::ranges::sort(paths);
  return paths;
}

Result<PresetPlan> ReadPlan(const std::string& path, const ModelPreview& model, const PresetInput& input) {
  HeadPlan plan = HeadPlan::Dense(model.config().shape());
  if (path != kFullPlan) {
    HW_ASSIGN_OR_RETURN(plan, ReadHeadPlan(path));
    HW_RETURN_IF_ERROR(CheckPlanFits(plan, model.config().shape(), path));
  }
  HW_ASSIGN_OR_RETURN(PlanLoss loss, LossOfPlan(plan, input.windows, path));
  PresetPlan read{.name = path, .plan = std::make_shared<const HeadPlan>(std::move(plan)), .loss = std::move(loss)};
  // What the backend or the options refuse: selection by score on a GPU, and the like. Bytes are counted later.
  Status taken = model.Check({.plan = read.plan, .prompt_tokens = 1, .max_tokens = 1});
  if (!taken.ok() && taken.code() != StatusCode::kOutOfMemory) return std::move(taken).Annotate(path);
  return read;
}

// Every head full, and what lies beside the model.
Status FindPlans(const std::string& model_path, const ModelPreview& model, PresetReport& report) {
  PresetInput& input = report.input;
  HW_ASSIGN_OR_RETURN(PresetPlan full, ReadPlan(kFullPlan, model, input));
  input.plans.push_back(std::move(full));
  const std::vector<std::string> paths = PathsBeside(model_path);
  for (const std::string& path : paths) {
    Result<PresetPlan> plan = ReadPlan(path, model, input);
    if (!plan.ok()) {
      report.passed_over.push_back(plan.status().message());
    } else if (plan->plan->rules != input.plans.front().plan->rules) {
      input.plans.push_back(*std::move(plan));
    }
  }
  if (!paths.empty() && paths.size() > report.passed_over.size()) return Status::Ok();
  std::string stem = fs::path(model_path).lexically_normal().string();
  if (stem.ends_with('/')) stem.pop_back();
  if (IsGgufPath(stem)) stem.resize(stem.size() - std::string_view(".gguf").size());
  std::string found = paths.empty() ? "none" : "";
  for (const std::string& each : report.passed_over) found += fmt::format("{}{}", found.empty() ? "" : "; ", each);
  return Status::InvalidInput(fmt::format(
      "--preset long: looked for plans in {0}-*.json, found {1}; expected one, such as `headwise plan razor --model "
      "{2} "
      "--kv-ratio 0.25 --at 32768 --out {0}-razor.json` makes, or --plan; --plan full keeps every head full",
      stem, found, model_path));
}

Result<PresetMemory> MemoryFor(const PresetUse& use, const EngineOptions& options, const ModelPreview& model) {
  PresetMemory memory{.total_bytes = use.memory_bytes,
                      .weight_bytes = model.weight_bytes(),
                      .activation_bytes = ActivationBytes(model.config(), options.chunk_tokens),
                      .kv_limit_bytes = options.kv_limit_bytes};
  if (options.expert_bytes > 0) {
    memory.weight_bytes -= std::max<int64_t>(0, model.expert_bytes() - options.expert_bytes);
  }
  if (use.memory_bytes > 0 || options.kv_limit_bytes > 0) return memory;
  memory.total_bytes = FreeMemoryBytes(model.backend());
  if (memory.total_bytes == 0) {
    return Status::Unsupported(
        "--preset long: the system does not say how much memory is free, expected "
        "--kv-limit-bytes");
  }
  memory.reserve_bytes = memory.total_bytes / kReserveShare;
  if (model.backend().name() == "cuda") memory.reserve_bytes = std::max(memory.reserve_bytes, kGpuReserveBytes);
  return memory;
}

Result<std::vector<KvFormats>> FormatsFor(const PresetFlags& flags, const EngineOptions& options) {
  std::vector<KvFormats> formats;
  if (flags.kv_dtype->count() > 0) {
    HW_ASSIGN_OR_RETURN(const KvFormats given, KvFormatsByName(options.kv_dtype));
    return std::vector<KvFormats>{given};
  }
  for (const char* name : kFormats) {
    HW_ASSIGN_OR_RETURN(const KvFormats each, KvFormatsByName(name));
    if (options.batch_invariant && each.full == KvFormat::kQ4) continue;  // which engines refuse
    formats.push_back(each);
  }
  return formats;
}

// Of so many elements of matrices; tables are the embedding and, where it is another, the output matrix, which files of
// q4_0 have in q6_k, or in q8_0 where its blocks do not fit (engine/quantize.h).
int64_t BytesIn(DType type, int64_t num_elements, int64_t num_in_tables, int64_t model_dim) {
  const auto bytes = [](DType of, int64_t count) {
    return static_cast<int64_t>(static_cast<double>(count) / static_cast<double>(BlockElements(of)) *
                                static_cast<double>(BlockBytes(of)));
  };
  if (type != DType::kQ4_0) return bytes(type, num_elements);
  const DType of_tables = model_dim % BlockElements(DType::kQ6_K) == 0 ? DType::kQ6_K : DType::kQ8_0;
  return bytes(type, num_elements - num_in_tables) + bytes(of_tables, num_in_tables);
}

// What `quantize` would give in place of weights of 16 bits and more: weights are the user's, and stay as they are.
Result<std::string> WeightsText(const PresetReport& report, const EngineOptions& options, const ModelPreview& model) {
  const auto largest = std::ranges::max_element(
      model.bytes_by_format(), {}, [](const std::pair<const DType, int64_t>& each) { return each.second; });
  if (largest == model.bytes_by_format().end()) return std::string();
  const DType type = largest->first;
  const std::optional<MeasuredLoss> loss = LossOfWeights(type);
  std::string text = fmt::format("weights   {}, {}, as they are", NameOf(type), FormatBytes(model.weight_bytes()));
  if (IsBlockFormat(type)) {
    return text + (loss ? fmt::format("; loss beside 16 bits: {}, on the bundled model\n", Describe(*loss))
                        : "; what they lose beside 16 bits was not measured\n");
  }
  text += "\n";
  if (!IsPlainFloat(type) || report.choice.chosen.tokens >= report.input.most_tokens) return text;
  if (IsGgufPath(options.model) || options.kv_limit_bytes > 0) return text;
  const ModelConfig& config = model.config();
  const int64_t num_elements = largest->second / SizeOf(type);
  const int64_t num_in_tables = config.vocab_size * config.model_dim * (config.tied_embeddings ? 1 : 2);
  for (const DType smaller : {DType::kQ8_0, DType::kQ4_0}) {
    if (LossOfWeights(smaller)->worst() > report.input.max_loss) continue;
    PresetInput input = report.input;
    const int64_t bytes = BytesIn(smaller, num_elements, std::min(num_in_tables, num_elements), config.model_dim);
    input.memory.weight_bytes += bytes - largest->second;
    const Result<PresetChoice> choice = ChoosePreset(input);
    if (!choice.ok()) continue;
    text += fmt::format(
        "          `headwise quantize --model {} --type {} --out FILE` would make them about {}, for {} tokens, at a "
        "loss of {} besides, on the bundled model\n",
        options.model, NameOf(smaller), FormatBytes(input.memory.weight_bytes), choice->chosen.tokens,
        Describe(*LossOfWeights(smaller)));
  }
  return text;
}

}  // namespace

void AddPresetOptions(CLI::App& command, PresetFlags& flags) {
  CLI::Option* preset =
      command
          .add_option("--preset", flags.preset,
                      "long: choose plan, cache format and KV limit for the longest text that fits into what memory is "
                      "free; what is given here as well stays as it is")
          ->check(CLI::IsMember({"long"}));
  command
      .add_option("--max-loss", flags.max_loss,
                  "With --preset: the most that its choice may cost, in % of perplexity and of answers from far away, "
                  "by what was measured on the bundled model")
      ->needs(preset)
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  flags.kv_dtype = command.get_option("--kv-dtype");
  flags.kv_limit_bytes = command.get_option("--kv-limit-bytes");
}

Result<PresetReport> MakePreset(const PresetFlags& flags, const PresetUse& use, const EngineOptions& options,
                                const ModelPreview& model) {
  PresetReport report;
  PresetInput& input = report.input;
  const ModelConfig& config = model.config();
  input.windows = LayerWindowsOf(config);
  input.num_texts = use.num_texts;
  input.most_tokens = use.max_context > 0 ? use.max_context : config.trained_length;
  input.chunk_tokens = options.chunk_tokens;
  input.page_tokens = options.page_tokens;
  input.max_loss = flags.max_loss / 100;
  input.page_sizes_of = [&model](const KvLayout& layout) { return PageSizesOf(model.backend(), layout); };
  input.plan_is_given = !use.plan.empty();
  input.formats_are_given = flags.kv_dtype->count() > 0;
  HW_ASSIGN_OR_RETURN(input.memory, MemoryFor(use, options, model));
  HW_ASSIGN_OR_RETURN(input.formats, FormatsFor(flags, options));
  if (input.plan_is_given) {
    HW_ASSIGN_OR_RETURN(PresetPlan plan, ReadPlan(use.plan, model, input));
    input.plans.push_back(std::move(plan));
  } else {
    HW_RETURN_IF_ERROR(FindPlans(options.model, model, report));
  }
  HW_ASSIGN_OR_RETURN(report.choice, ChoosePreset(input));
  HW_ASSIGN_OR_RETURN(report.weights, WeightsText(report, options, model));
  input.page_sizes_of = nullptr;  // the report may outlive the model
  return report;
}

Result<AppliedPreset> ApplyPreset(const PresetFlags& flags, const PresetUse& use, EngineOptions& options) {
  if (!flags) return AppliedPreset{.plan = use.plan, .max_context = use.max_context};
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<ModelPreview> model, ModelPreview::Open(options));
  HW_ASSIGN_OR_RETURN(const PresetReport report, MakePreset(flags, use, options, *model));
  options.kv_dtype = NameOf(report.choice.chosen.formats);
  if (flags.kv_limit_bytes->count() == 0) options.kv_limit_bytes = report.input.memory.kv_bytes();
  fmt::print(stderr, "{}", EscapeControls(PresetText(report)));
  AppliedPreset applied{.plan = report.plan(), .max_context = use.max_context};
  const int64_t tokens = report.choice.chosen.tokens;
  if (applied.max_context == 0 && tokens < report.input.most_tokens) applied.max_context = tokens;
  return applied;
}

Json PresetJson(const PresetReport& report) {
  const PresetInput& input = report.input;
  const auto loss_json = [](const std::optional<MeasuredLoss>& loss) {
    return loss ? Json({{"perplexity", loss->perplexity}, {"answers", loss->answers}}) : Json();
  };
  const auto option_json = [&](const PresetOption& option) {
    return Json{{"plan", input.plans[option.plan_idx].name},
                {"kv_dtype", NameOf(option.formats)},
                {"tokens", option.tokens},
                {"loss", loss_json(option.loss)},
                {"loss_of_plan_from", input.plans[option.plan_idx].loss.from},
                {"within_max_loss", option.bounded && *option.bounded <= input.max_loss}};
  };
  Json options = Json::array();
  for (const PresetOption& option : report.choice.options) options.push_back(option_json(option));
  return {{"chosen", option_json(report.choice.chosen)},
          {"plan_is_given", input.plan_is_given},
          {"kv_dtype_is_given", input.formats_are_given},
          {"max_loss", input.max_loss},
          {"most_tokens", input.most_tokens},
          {"kv_limit_bytes", input.memory.kv_bytes()},
          {"memory_bytes", input.memory.total_bytes},
          {"reserve_bytes", input.memory.reserve_bytes},
          {"options", std::move(options)},
          {"passed_over", report.passed_over}};
}

std::string PresetText(const PresetReport& report) {
  std::string text = PresetText(report.input, report.choice);
  for (const std::string& each : report.passed_over) text += fmt::format("          passed over: {}\n", each);
  return text + report.weights;
}

}  // namespace headwise
