#include "planner/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backend/all_backends.h"
#include "base/cpu_info.h"
#include "engine/prompt.h"

namespace headwise {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;
// The paper's grid is 50 lengths up to 32,000 tokens [duo authors' defaults]; here also within the trained length.
constexpr int64_t kDefaultMinTokens = 1000;
constexpr int64_t kDefaultNumLengths = 50;

Result<int64_t> FewestPasskeyTokens(const CalibrationOptions& options, const PlannerModel& model) {
  return MinPasskeyTokens(*model.tokenizer, {.num_passkeys = options.num_passkeys,
                                             .words_per_passkey = options.words_per_passkey,
                                             .start_ids = model.start_ids});
}

Status CheckLengths(const CalibrationOptions& options, const PlannerModel& model) {
  const int64_t trained = model.model->config.trained_length;
  if (options.lengths.back() > trained) {
    return Status::InvalidInput(fmt::format(
        "--max-tokens: found {}, expected at most {}, the length that the model was trained for: beyond it the dense "
        "model is no teacher",
        options.lengths.back(), trained));
  }
  if (options.data != CalibrationOptions::Data::kPasskeys) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const int64_t fewest, FewestPasskeyTokens(options, model));
  if (options.lengths.front() >= fewest) return Status::Ok();
  return Status::InvalidInput(fmt::format(
      "--min-tokens: found {}, expected at least {}: {} passkeys of {} words with their questions take as many",
      options.lengths.front(), fewest, options.num_passkeys, options.words_per_passkey));
}

}  // namespace

Result<Compute> ReadGradCompute(const NamedOptions& options) {
  static constexpr std::string_view kChoices[] = {"f32", "bf16"};
  HW_RETURN_IF_ERROR(options.ChoiceOr("compute", kChoices).status());
  return options.StringOr("compute", "f32") == "bf16" ? Compute::kBF16 : Compute::kF32;
}

Result<PlannerModel> OpenPlannerModel(const PlannerInput& input) {
  PlannerModel opened;
  HW_ASSIGN_OR_RETURN(opened.compute, ReadGradCompute(input.options));
  opened.num_threads = input.num_threads > 0 ? input.num_threads : NumUsableCores();
  // Only its memory is used: gradients have code of their own, which reads weights as they lie in the file.
  HW_ASSIGN_OR_RETURN(opened.backend, MakeBackend({.name = "ref"}));
  HW_ASSIGN_OR_RETURN(opened.model, LoadModel(input.model, *opened.backend));
  HW_ASSIGN_OR_RETURN(opened.tokenizer, OpenTokenizer(input.model, input.on_warning));
  opened.start_ids = StartOfText(*opened.tokenizer, opened.model->config);
  return opened;
}

Result<CalibrationOptions> ReadCalibration(const PlannerInput& input, const PlannerModel& model,
                                           int64_t default_max_tokens) {
  const NamedOptions& options = input.options;
  CalibrationOptions calibration;
  const std::string data = options.StringOr("data", "passkeys");
  if (data != "passkeys" && data != "text") {
    return Status::InvalidInput(fmt::format("--data: found \"{}\", expected passkeys or text", data));
  }
  if (data == "text") {
    calibration.data = CalibrationOptions::Data::kText;
    for (const char* option : {"passkeys", "passkey-words"}) {
      if (!options.Has(option)) continue;
      return Status::InvalidInput(fmt::format("--{}: has no effect on --data text, expected passkeys", option));
    }
  }
  calibration.text_file = options.StringOr("text", "");
  const int64_t trained = model.model->config.trained_length;
  HW_ASSIGN_OR_RETURN(const int64_t max_tokens,
                      options.IntOr("max-tokens", std::min(default_max_tokens, trained), 2, kMaxTokens));
  HW_ASSIGN_OR_RETURN(const int64_t num_lengths, options.IntOr("num-lengths", kDefaultNumLengths, 1, 1'000'000));
  HW_ASSIGN_OR_RETURN(calibration.num_passkeys, options.IntOr("passkeys", calibration.num_passkeys, 1, kMaxPasskeys));
  HW_ASSIGN_OR_RETURN(calibration.words_per_passkey,
                      options.IntOr("passkey-words", calibration.words_per_passkey, 1, 100'000));
  int64_t default_min_tokens = kDefaultMinTokens;
  if (calibration.data == CalibrationOptions::Data::kPasskeys) {
    HW_ASSIGN_OR_RETURN(const int64_t fewest, FewestPasskeyTokens(calibration, model));
    default_min_tokens = std::max(default_min_tokens, fewest);
  }
  HW_ASSIGN_OR_RETURN(const int64_t min_tokens,
                      options.IntOr("min-tokens", std::min(default_min_tokens, max_tokens), 2, kMaxTokens));
  HW_ASSIGN_OR_RETURN(const int64_t seed, options.IntOr("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  calibration.seed = static_cast<uint64_t>(seed);
  if (min_tokens > max_tokens) {
    return Status::InvalidInput(
        fmt::format("--min-tokens: found {}, expected at most --max-tokens {}", min_tokens, max_tokens));
  }
  for (int64_t i = 0; i < num_lengths; ++i) {
    calibration.lengths.push_back(num_lengths == 1 ? max_tokens
                                                   : min_tokens + (max_tokens - min_tokens) * i / (num_lengths - 1));
  }
  HW_RETURN_IF_ERROR(CheckLengths(calibration, model));
  return calibration;
}

Result<CalibrationSamples> CalibrationSamples::Open(const PlannerModel& model, CalibrationOptions options) {
  if (options.text_file.empty()) return CalibrationSamples(model, std::move(options), TextSource::Generator());
  HW_ASSIGN_OR_RETURN(TextSource text, TextSource::FromFile(options.text_file));
  return CalibrationSamples(model, std::move(options), std::move(text));
}

Result<TokenSample> CalibrationSamples::Make(uint64_t index) const {
  // One generator per sample, the seed and the index far apart in its state.
  Rng rng(options_.seed * 0x9E3779B97F4A7C15u + index);
  const int64_t num_tokens = options_.lengths[rng.Below(options_.lengths.size())];
  auto sample =
      options_.data == CalibrationOptions::Data::kText
          ? MakeTextSample(*model_->tokenizer, text_, rng, {.num_tokens = num_tokens, .start_ids = model_->start_ids})
          : MakePasskeySample(*model_->tokenizer, text_, rng,
                              {.num_tokens = num_tokens,
                               .num_passkeys = options_.num_passkeys,
                               .words_per_passkey = options_.words_per_passkey,
                               .start_ids = model_->start_ids});
  if (!sample.ok()) return sample;
  const int64_t vocab_size = model_->model->config.vocab_size;
  for (const int32_t id : sample->ids) {
    if (id >= 0 && id < vocab_size) continue;
    return Status::InvalidInput(fmt::format("tokenizer: gave id {}, the model has embeddings for {}", id, vocab_size));
  }
  return sample;
}

}  // namespace headwise
