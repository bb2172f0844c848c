#include "planner/answers.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "base/file.h"
#include "base/mix_seed.h"
#include "base/sha256.h"
#include "data/recall_prompts.h"
#include "engine/prompt.h"

namespace headwise {

Result<AnswerSource> AnswerSource::Open(const PlannerInput& input, const PlannerModel& model,
                                        const AnswerOptions& options) {
  TextSource text = TextSource::Generator();
  if (!options.text_file.empty()) {
    HW_ASSIGN_OR_RETURN(text, TextSource::FromFile(options.text_file));
  }
  AnswerSource source(model, options, std::move(text));
  source.data_hash_ = source.text_.Hash();
  EngineOptions engine;
  engine.model = input.model;
  engine.num_threads = model.num_threads;
  engine.compute = "f32";
  engine.kv_dtype = "f32";
  HW_ASSIGN_OR_RETURN(source.engine_, Engine::Create(engine));
  if (options.prompt_file.empty()) return source;
  HW_ASSIGN_OR_RETURN(const std::vector<std::string> prompts, ReadPrompts(options.prompt_file));
  for (const std::string& prompt : prompts) {
    HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodePrompt(*source.engine_, prompt, {}));
    source.prompts_.push_back(std::move(ids));
  }
  HW_ASSIGN_OR_RETURN(const std::string content, ReadFile(options.prompt_file));
  source.data_hash_ = Sha256Hex(content);
  return source;
}

Result<std::vector<int32_t>> AnswerSource::MakePrompt(int64_t num_tokens, int64_t idx) const {
  const int64_t most = num_tokens - options_.max_answer_tokens;
  if (options_.prompt_file.empty()) {
    Rng rng(MixSeed(options_.seed, num_tokens, idx));
    // Steps of the golden ratio spread any number of depths evenly: a part of the text that no sample asks for looks as
    // if no head had to keep it.
    constexpr double kGoldenStep = 0.61803398874989485;
    const double start = Rng(MixSeed(options_.seed, num_tokens, -1)).Uniform();
    const double depth = std::fmod(start + static_cast<double>(idx) * kGoldenStep, 1.0);
    if (options_.data == AnswerOptions::Data::kText) {
      HW_ASSIGN_OR_RETURN(TokenSample sample, MakeTextSample(*model_->tokenizer, text_, rng,
                                                             {.num_tokens = most, .start_ids = model_->start_ids}));
      return std::move(sample.ids);
    }
    return MakeRecallPromptIds(*model_->tokenizer, text_, rng,
                               {.kind = kRecallKinds[static_cast<size_t>(idx) % kRecallKinds.size()],
                                .num_tokens = most,
                                .depth = depth,
                                .start_ids = model_->start_ids});
  }
  std::vector<const std::vector<int32_t>*> fitting;
  for (const std::vector<int32_t>& prompt : prompts_) {
    const auto length = static_cast<int64_t>(prompt.size());
    if (length <= most && 2 * length > num_tokens) fitting.push_back(&prompt);
  }
  if (fitting.empty()) {
    return Status::InvalidInput(fmt::format("{}: none of {} prompts has {} to {} tokens, expected some for length {}",
                                            options_.prompt_file, prompts_.size(), num_tokens / 2 + 1, most,
                                            num_tokens));
  }
  return *fitting[static_cast<size_t>(idx) % fitting.size()];
}

Result<TokenSample> AnswerSource::Make(int64_t num_tokens, int64_t idx) {
  const auto key = std::pair(num_tokens, idx);
  if (const auto it = made_.find(key); it != made_.end()) return it->second;
  const auto start = std::chrono::steady_clock::now();
  HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, MakePrompt(num_tokens, idx));
  Request request;
  request.prompt = ids;
  request.max_new_tokens = options_.max_answer_tokens;
  request.stop = {"\n"};
  HW_ASSIGN_OR_RETURN(const RequestResult result, engine_->Run(std::move(request)));
  TokenSample sample{.ids = std::move(ids), .labels = {}};
  const auto prompt_tokens = static_cast<int32_t>(sample.ids.size());
  sample.ids.insert(sample.ids.end(), result.tokens.begin(), result.tokens.end());
  if (result.tokens.empty()) {
    // The model ends the text at once: that end is its answer.
    const std::vector<int32_t>& ends = model_->model->config.eos_ids;
    sample.ids.push_back(ends.empty() ? sample.ids.back() : ends.front());
  }
  for (int32_t pos = prompt_tokens - 1; pos + 1 < static_cast<int32_t>(sample.ids.size()); ++pos) {
    sample.labels.push_back(pos);
  }
  answer_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  made_.emplace(key, sample);
  return sample;
}

Result<double> AnswerSource::MeanLoss(const std::vector<TokenSample>& samples,
                                      const std::shared_ptr<const HeadPlan>& plan) {
  double total = 0;
  for (const TokenSample& sample : samples) {
    const std::vector<int64_t> positions(sample.labels.begin(), sample.labels.end());
    double nll = 0;
    ForcedRun run;
    run.plan = plan;
    run.ids = sample.ids;
    // The answer is read as in use: prompt in chunks, then token by token.
    run.prompt_tokens = sample.labels.front() + 1;
    run.positions = positions;
    run.on_row = [&](int64_t position, std::span<const float> logits, std::span<const float>) {
      const float max = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit - max));
      const int32_t target = sample.ids[static_cast<size_t>(position) + 1];
      nll += std::log(sum) + max - logits[static_cast<size_t>(target)];
      return true;
    };
    HW_RETURN_IF_ERROR(engine_->RunForced(run));
    total += nll / static_cast<double>(positions.size());
  }
  return total / static_cast<double>(samples.size());
}

}  // namespace headwise
