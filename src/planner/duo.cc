#include "planner/duo.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "planner/grad_lanes.h"

namespace headwise {
namespace {

// A fifth of the steps each for warm-up and decay [duo §3.1].
int64_t PhaseSteps(const DuoOptions& options) {
  return std::max<int64_t>(1, options.num_steps / 5);
}

int64_t DecayStart(const DuoOptions& options, const DuoState& state) {
  return state.decay_start >= 0 ? state.decay_start : std::max<int64_t>(0, options.num_steps - PhaseSteps(options));
}

int64_t EndStep(const DuoOptions& options, const DuoState& state) {
  return state.decay_start >= 0 ? std::min(options.num_steps, state.decay_start + PhaseSteps(options))
                                : options.num_steps;
}

struct SampleGradient {
  double loss = 0;
  std::vector<double> d_gates;
};

// Mean squared difference of the final hidden states on the labelled tokens [duo §2.2 eq.1], and its gradient.
SampleGradient GradientOf(GradDecoder<float>& decoder, const TokenSample& sample, const HeadGates& gates) {
  using Forward = GradDecoder<float>::ForwardArgs;
  std::vector<float> teacher;
  std::vector<float> student;
  decoder.Forward({.ids = sample.ids, .wanted = sample.labels, .on_attention = {}}, teacher);
  decoder.Forward({.ids = sample.ids,
                   .wanted = sample.labels,
                   .gates = &gates,
                   .keep = Forward::Keep::kForBackward,
                   .on_attention = {}},
                  student);
  SampleGradient result;
  const auto count = static_cast<double>(student.size());
  for (size_t i = 0; i < student.size(); ++i) {
    const float difference = student[i] - teacher[i];
    result.loss += static_cast<double>(difference) * difference / count;
    student[i] = 2 * difference / static_cast<float>(count);
  }
  result.d_gates.resize(gates.values.size());
  decoder.Backward({.d_hidden = student, .d_gates = result.d_gates, .influence = {}});
  return result;
}

// Which gates are large: the ranking's upper end, as far as it is decided.
std::vector<bool> LargeGates(const std::vector<double>& gates) {
  const double most = *std::max_element(gates.begin(), gates.end());
  std::vector<bool> large;
  for (const double gate : gates) large.push_back(gate > most / 2);
  return large;
}

// Stable for a tenth of the planned steps, once most gates have fallen: the rest would only repeat itself.
bool IsDecided(const DuoOptions& options, const DuoState& state) {
  const auto num_large = std::count_if(state.gates.begin(), state.gates.end(), [](double gate) { return gate > 0.5; });
  return state.num_steps_done >= PhaseSteps(options) && 2 * num_large <= static_cast<int64_t>(state.gates.size()) &&
         state.num_stable_steps >= std::max<int64_t>(10, options.num_steps / 10);
}

void ShareByLayer(int64_t heads_per_layer, std::vector<double>& gradient) {
  for (size_t begin = 0; begin < gradient.size(); begin += static_cast<size_t>(heads_per_layer)) {
    double sum = 0;
    for (int64_t i = 0; i < heads_per_layer; ++i) sum += gradient[begin + static_cast<size_t>(i)];
    for (int64_t i = 0; i < heads_per_layer; ++i) gradient[begin + static_cast<size_t>(i)] = sum;
  }
}

bool AllFinite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

Result<std::vector<TokenSample>> MakeSamples(const DuoOptions& options, const SampleMaker& make_sample, int64_t step) {
  std::vector<TokenSample> samples;
  for (int64_t i = 0; i < options.samples_per_step; ++i) {
    HW_ASSIGN_OR_RETURN(TokenSample sample, make_sample(step, i));
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace

double DuoLearningRate(const DuoOptions& options, int64_t step, int64_t decay_start) {
  const auto phase = static_cast<double>(PhaseSteps(options));
  const double range = options.learning_rate - options.lowest_learning_rate;
  const double risen = std::min(1.0, static_cast<double>(step) / phase);
  const double fallen = step < decay_start ? 0.0 : std::min(1.0, static_cast<double>(step - decay_start + 1) / phase);
  return options.lowest_learning_rate + range * std::min(risen, 1.0 - fallen);
}

Status TrainGates(const Model& model, const DuoOptions& options, const SampleMaker& make_sample,
                  const DuoProgress& on_step, DuoState& state) {
  using Clock = std::chrono::steady_clock;
  const ModelConfig& config = model.config;
  const auto num_gates = static_cast<size_t>(config.num_layers * config.num_kv_heads);
  if (state.gates.empty()) state.gates.assign(num_gates, 1.0);
  const int64_t memory_needed = GradMemoryBytes(config, options.max_tokens, sizeof(float), options.compute);
  if (options.memory_bytes > 0 && options.memory_bytes < memory_needed) {
    return Status::InvalidInput(fmt::format("--memory-bytes: found {}, expected at least {} for one text of {} tokens",
                                            options.memory_bytes, memory_needed, options.max_tokens));
  }
  GradLanes lanes(model, {.num_threads = options.num_threads,
                          .max_texts = options.samples_per_step,
                          .max_tokens = options.max_tokens,
                          .memory_bytes = options.memory_bytes,
                          .compute = options.compute});
  const AdamW optimiser;
  const double seconds_before = state.seconds;
  const Clock::time_point start = Clock::now();
  while (state.num_steps_done < EndStep(options, state)) {
    const int64_t step = state.num_steps_done;
    HW_ASSIGN_OR_RETURN(const std::vector<TokenSample> samples, MakeSamples(options, make_sample, step));
    const HeadGates gates{.values = state.gates, .bounded = options.train_rule};
    std::vector<SampleGradient> gradients(samples.size());
    lanes.Run(static_cast<int64_t>(samples.size()), [&](GradDecoder<float>& decoder, int64_t idx) {
      gradients[static_cast<size_t>(idx)] = GradientOf(decoder, samples[static_cast<size_t>(idx)], gates);
    });
    // In the order of the samples, whichever finished first.
    double loss = 0;
    std::vector<double> gradient(num_gates, options.regulariser / static_cast<double>(num_gates));
    for (const SampleGradient& each : gradients) {
      loss += each.loss / static_cast<double>(gradients.size());
      for (size_t i = 0; i < num_gates; ++i) gradient[i] += each.d_gates[i] / static_cast<double>(gradients.size());
    }
    if (!std::isfinite(loss) || !AllFinite(gradient)) {
      return Status::InvalidInput(
          fmt::format("training the gates: the loss at step {} of {} is {}, or its gradient is not finite; expected "
                      "finite numbers from this model and text",
                      step + 1, options.num_steps, loss));
    }
    if (options.sharing == GateSharing::kPerLayer) ShareByLayer(config.num_kv_heads, gradient);
    const std::vector<bool> large_before = LargeGates(state.gates);
    optimiser.Update(gradient, DuoLearningRate(options, step, DecayStart(options, state)), state.optimiser,
                     state.gates);
    for (double& gate : state.gates) gate = std::clamp(gate, 0.0, 1.0);
    state.num_stable_steps = LargeGates(state.gates) == large_before ? state.num_stable_steps + 1 : 0;
    state.losses.push_back(loss);
    ++state.num_steps_done;
    if (options.early_stop == DuoOptions::EarlyStop::kYes && state.decay_start < 0 &&
        state.num_steps_done < DecayStart(options, state) && IsDecided(options, state)) {
      state.decay_start = state.num_steps_done;
    }
    state.seconds = seconds_before + std::chrono::duration<double>(Clock::now() - start).count();
    HW_RETURN_IF_ERROR(on_step(state, EndStep(options, state)));
  }
  return Status::Ok();
}

Json DuoState::ToJson() const {
  return {{"num_steps_done", num_steps_done},
          {"decay_start", decay_start},
          {"num_stable_steps", num_stable_steps},
          {"gates", gates},
          {"num_updates", optimiser.num_updates},
          {"first_moment", optimiser.first_moment},
          {"second_moment", optimiser.second_moment},
          {"losses", losses},
          {"seconds", seconds}};
}

Result<DuoState> DuoState::FromJson(const Json& json, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, origin));
  DuoState state;
  HW_ASSIGN_OR_RETURN(state.num_steps_done, object.Int("num_steps_done"));
  HW_ASSIGN_OR_RETURN(state.decay_start, object.Int("decay_start"));
  HW_ASSIGN_OR_RETURN(state.num_stable_steps, object.Int("num_stable_steps"));
  HW_ASSIGN_OR_RETURN(state.optimiser.num_updates, object.Int("num_updates"));
  HW_ASSIGN_OR_RETURN(state.seconds, object.Double("seconds"));
  HW_ASSIGN_OR_RETURN(state.gates, object.Doubles("gates"));
  HW_ASSIGN_OR_RETURN(state.optimiser.first_moment, object.Doubles("first_moment"));
  HW_ASSIGN_OR_RETURN(state.optimiser.second_moment, object.Doubles("second_moment"));
  HW_ASSIGN_OR_RETURN(state.losses, object.Doubles("losses"));
  const bool are_gates =
      std::all_of(state.gates.begin(), state.gates.end(), [](double gate) { return gate >= 0 && gate <= 1; });
  if (state.num_steps_done != static_cast<int64_t>(state.losses.size()) || state.num_stable_steps < 0 ||
      state.optimiser.num_updates < 0 || !are_gates) {
    return Status::InvalidInput(
        fmt::format("{}: {} steps, {} losses, {} updates; expected as many losses as steps, and gates from 0 to 1",
                    origin, state.num_steps_done, state.losses.size(), state.optimiser.num_updates));
  }
  if (state.optimiser.first_moment.size() != state.gates.size() ||
      state.optimiser.second_moment.size() != state.gates.size()) {
    return Status::InvalidInput(fmt::format("{}: {} gates, but {} and {} moments of them", origin, state.gates.size(),
                                            state.optimiser.first_moment.size(), state.optimiser.second_moment.size()));
  }
  return state;
}

}  // namespace headwise
