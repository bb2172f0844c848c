#include "common_options.h"

#include <fmt/format.h>
#include <headwise/model_info.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "base/process_memory.h"
#include "model/model_config.h"
#include "option_checks.h"
#include "terminal_line.h"
#include "text/escape.h"

namespace headwise {
namespace {

double PerSecond(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

// The first new token comes out of prefill.
double DecodeTokensPerSecond(const RequestMetrics& metrics) {
  return metrics.new_tokens > 1 ? PerSecond(metrics.new_tokens - 1, metrics.decode_seconds) : 0.0;
}

// TOKEN_ID=BIAS, where BIAS may be inf with a sign.
Result<LogitBias> ParseLogitBias(std::string_view text) {
  LogitBias parsed;
  const size_t equals = text.find('=');
  std::string_view id = text.substr(0, equals);
  std::string_view bias = equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  if (bias.starts_with('+') && !bias.starts_with("+-")) bias.remove_prefix(1);
  const auto [id_end, id_error] = std::from_chars(id.data(), id.data() + id.size(), parsed.id);
  const auto [bias_end, bias_error] = std::from_chars(bias.data(), bias.data() + bias.size(), parsed.bias);
  const bool is_read = id_error == std::errc() && id_end == id.data() + id.size() && bias_error == std::errc() &&
                       bias_end == bias.data() + bias.size();
  if (is_read && parsed.id >= 0 && !std::isnan(parsed.bias)) return parsed;
  return Status::InvalidInput(
      fmt::format("found \"{}\", expected TOKEN_ID=BIAS, such as 42=-5 or 42=-inf (never drawn)", text));
}

// A bar on the terminal while weights are brought into the kernels' order.
std::function<void(int64_t, int64_t)> ShowLoading() {
  struct Shown {
    TerminalLine line;
    std::optional<ProgressBar> bar;
  };
  return [shown = std::make_shared<Shown>()](int64_t done, int64_t total) {
    if (!shown->bar) shown->bar.emplace(&shown->line, "load", total);
    shown->bar->Update(done);
    if (done >= total) shown->bar.reset();
  };
}

// Empty without experts.
std::string ExpertsText(const ExpertMemory& experts) {
  if (experts.total_bytes == 0) return "";
  std::string text = fmt::format(
      "experts   {} of {} in memory: {:.1f} %", FormatBytes(experts.resident_bytes), FormatBytes(experts.total_bytes),
      100.0 * static_cast<double>(experts.resident_bytes) / static_cast<double>(experts.total_bytes));
  if (experts.num_chosen > 0) {
    text += fmt::format("; read for {} of {} that were chosen", experts.num_read, experts.num_chosen);
  }
  return text + "\n";
}

}  // namespace

void LogWarning(std::string_view message) {
  spdlog::warn("{}", EscapeControls(message));
}

void AddEngineOptions(CLI::App& command, EngineOptions& options) {
  options.on_warning = LogWarning;
  options.on_load = ShowLoading();
  command.add_option("--model,-m", options.model, "Model: a Hugging Face folder or a .gguf file")->required();
  command.add_option("--backend", options.backend, "cpu, cuda, ref, or auto: cuda where a GPU is")
      ->capture_default_str();
  command.add_flag("!--no-mmap", options.use_mmap,
                   "Read all weights into memory first: files that change under a running program do no harm");
  AddBytesOption(command, "--expert-bytes", options.expert_bytes,
                 "Of a .gguf mixture larger than memory: keep at most so many bytes of experts ready, read others when "
                 "they are chosen; 0: all are ready");
  command.add_option("--isa", options.isa, "amx, avx512, avx2, baseline or auto")->capture_default_str();
  command
      .add_option("--compute", options.compute,
                  "Matrix products: f32, bf16, int8, fp8 (of GPUs), w8a8 (of CPUs with AMX) or auto")
      ->capture_default_str();
  command.add_flag("--batch-invariant", options.batch_invariant,
                   "The same bits whatever else shares a step and however a text is cut into steps");
  command
      .add_option("--kv-dtype", options.kv_dtype,
                  "Cache: f32, f16, bf16, q8 or q4; two with a comma: full heads, bounded heads")
      ->capture_default_str();
  AddBytesOption(command, "--kv-limit-bytes", options.kv_limit_bytes, "Hard limit on KV bytes; 0: none");
  command.add_option("--threads", options.num_threads, "Threads; 0: one per core")->capture_default_str();
  command.add_option("--chunk-tokens", options.chunk_tokens, "Prompt tokens read per step")->capture_default_str();
  command
      .add_option("--page-tokens", options.page_tokens, "Tokens per KV page; 0: 64 where full heads are q4, else 32")
      ->capture_default_str();
}

void AddSamplingOptions(CLI::App& command, SamplingFlags& flags) {
  SamplingOptions& sampling = flags.sampling;
  command.add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Only the k most likely tokens; 0: off")->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Only the most likely tokens that reach this probability; 1: off")
      ->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Only tokens this likely, relative to the best; 0: off")
      ->capture_default_str();
  command.add_option("--repetition-penalty", sampling.repetition_penalty, "1: off")->capture_default_str();
  command
      .add_option("--frequency-penalty", sampling.frequency_penalty,
                  "Taken from a token's logit each time that the answer has it, -2 to 2; 0: off")
      ->capture_default_str();
  command
      .add_option("--presence-penalty", sampling.presence_penalty,
                  "Taken from the logits of tokens that the answer has, -2 to 2; 0: off")
      ->capture_default_str();
  command
      .add_option("--logit-bias", flags.logit_bias,
                  "TOKEN_ID=BIAS: added to a token's logit; -inf: never drawn, inf: always; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->check(CLI::Validator([](std::string& text) { return ParseLogitBias(text).status().message(); }, ""));
  command.add_option("--seed", flags.seed, "Seed of the draws; without it one is drawn, and shown on standard error");
}

SamplingOptions SamplingOf(const SamplingFlags& flags, std::optional<bool> draws) {
  SamplingOptions sampling = flags.sampling;
  for (const std::string& text : flags.logit_bias) sampling.logit_bias.push_back(*ParseLogitBias(text));
  if (flags.seed) {
    sampling.seed = *flags.seed;
  } else if (draws.value_or(sampling.temperature > 0)) {
    // 32 bits are enough for a new text, and short enough to be typed.
    sampling.seed = std::random_device()();
    spdlog::info("drawn with --seed {}", sampling.seed);
  }
  return sampling;
}

Result<std::shared_ptr<const HeadPlan>> LoadPlan(const std::string& path, const Engine& engine) {
  if (path.empty() || path == kFullPlan) return std::shared_ptr<const HeadPlan>();
  HW_ASSIGN_OR_RETURN(HeadPlan plan, ReadPlanFor(engine, path));
  return std::make_shared<const HeadPlan>(std::move(plan));
}

void RaiseFileLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // where it is refused, the limit stays what it was
}

Result<std::string> ReadStdin() {
  std::string text;
  char buffer[1 << 16];
  for (size_t num_read = 0; (num_read = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, num_read);
  }
  if (std::ferror(stdin) != 0) return Status::Io(fmt::format("standard input: cannot read: {}", std::strerror(errno)));
  return text;
}

Result<std::vector<int32_t>> ParseIds(std::string_view text, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseJson(text, origin));
  if (!json.is_array()) return Status::InvalidInput(fmt::format("{}: expected a JSON list of token ids", origin));
  std::vector<int32_t> ids;
  for (const Json& id : json) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return Status::InvalidInput(fmt::format("{}: item {} is {}, expected a token id", origin, ids.size(), id.dump()));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Json RequestMetricsJson(const RequestMetrics& metrics) {
  return {{"prompt_tokens", metrics.prompt_tokens},
          {"new_tokens", metrics.new_tokens},
          {"prefill_seconds", metrics.prefill_seconds},
          {"decode_seconds", metrics.decode_seconds},
          {"prefill_tokens_per_second", PerSecond(metrics.prompt_tokens, metrics.prefill_seconds)},
          {"decode_tokens_per_second", DecodeTokensPerSecond(metrics)},
          {"kv_bytes", metrics.kv_bytes},
          {"kv_bytes_full", metrics.kv_bytes_full},
          {"kv_bytes_bounded", metrics.kv_bytes_bounded},
          {"kv_peak_bytes", metrics.kv_peak_bytes}};
}

Json MetricsJson(const RequestMetrics& metrics) {
  const ProcessMemory memory = ReadProcessMemory();
  Json json = RequestMetricsJson(metrics);
  json["resident_bytes"] = memory.resident_bytes;
  json["resident_anon_bytes"] = memory.resident_anon_bytes;
  json["peak_resident_bytes"] = memory.peak_resident_bytes;
  return json;
}

std::string FormatMetrics(const RequestMetrics& metrics, const Engine& engine) {
  const ProcessMemory memory = ReadProcessMemory();
  std::string text = fmt::format("backend   {}\n", engine.backend_description());
  text += fmt::format("prefill   {} tokens in {:.3f} s: {:.1f} tokens/s\n", metrics.prompt_tokens,
                      metrics.prefill_seconds, PerSecond(metrics.prompt_tokens, metrics.prefill_seconds));
  text += fmt::format("decode    {} tokens in {:.3f} s: {:.1f} tokens/s\n", metrics.new_tokens, metrics.decode_seconds,
                      DecodeTokensPerSecond(metrics));
  text += fmt::format("KV now    {} ({} in full heads, {} in bounded heads), at peak {}\n",
                      FormatBytes(metrics.kv_bytes), FormatBytes(metrics.kv_bytes_full),
                      FormatBytes(metrics.kv_bytes_bounded), FormatBytes(metrics.kv_peak_bytes));
  text += ExpertsText(engine.expert_memory());
  text += fmt::format("resident  {} ({} not backed by files), at peak {}\n", FormatBytes(memory.resident_bytes),
                      FormatBytes(memory.resident_anon_bytes), FormatBytes(memory.peak_resident_bytes));
  return text;
}

}  // namespace headwise
