// One endless stream: generates a million tokens with every head streaming and positions in the cache, and shows that
// memory, time per token and predictions stay what they were; it fails where memory or predictions do not.
// [streaming-llm §3.2, §4.1] Usage: stream_soak MODEL_FOLDER TEXT_FILE [NUM_TOKENS [BACKEND [TEMPERATURE]]]; the text
// is held out, 4,000 tokens or more. At temperature 0 a device chooses tokens by itself, steps ahead of the host.
#include <fmt/format.h>
#include <headwise/engine.h>
#include <headwise/tokenizer.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/file.h"
#include "base/process_memory.h"
#include "eval/perplexity.h"

namespace headwise {
namespace {

constexpr int64_t kSink = 16;
constexpr int64_t kRecent = 128;
constexpr size_t kHeldOut = 2000;

// Mean NLL of the second half of `ids`, read on a copy of the stream.
Result<double> HeldOutNll(Engine& engine, const Sequence& stream, std::span<const int32_t> ids) {
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> copy, engine.Fork(stream));
  double sum = 0;
  ForcedRun run;
  run.sequence = copy;
  run.ids = ids;
  run.rows = ForcedRun::Rows::kEvery;
  run.on_row = [&](int64_t position, std::span<const float> logits, std::span<const float>) {
    const auto next = static_cast<size_t>(position) + 1;
    if (next >= kHeldOut && next < 2 * kHeldOut) sum += NegativeLogLikelihood(logits, ids[next]);
    return true;
  };
  HW_RETURN_IF_ERROR(engine.RunForced(run));
  return sum / static_cast<double>(kHeldOut);
}

// What must stay as it was after the first 10,000 tokens.
struct Sample {
  int64_t kv_bytes = 0;
  int64_t resident_bytes = 0;
  double nll = 0;
};

// A page of each head may come or go with the place in it; the allocator may keep some memory; sums differ in their
// last digits.
Status CheckSteady(const Sample& first, const Sample& now, int64_t num_tokens) {
  constexpr int64_t kResidentSlack = int64_t{16} << 20;
  const auto differs = [&](const char* what, double was, double is) {
    return Status::InvalidInput(fmt::format("after {} tokens: {} is {}, was {}", num_tokens, what, is, was));
  };
  if (now.kv_bytes > first.kv_bytes * 5 / 4) {
    return differs("KV bytes", static_cast<double>(first.kv_bytes), static_cast<double>(now.kv_bytes));
  }
  if (now.resident_bytes > first.resident_bytes + kResidentSlack) {
    return differs("resident memory", static_cast<double>(first.resident_bytes),
                   static_cast<double>(now.resident_bytes));
  }
  if (std::abs(now.nll - first.nll) > 1e-2) return differs("NLL of the held-out text", first.nll, now.nll);
  return Status::Ok();
}

Status Soak(const std::string& model, const std::string& text_path, int64_t num_tokens, const std::string& backend,
            float temperature) {
  EngineOptions options;
  options.model = model;
  options.backend = backend;
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options));
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(text_path));
  HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, engine->tokenizer().Encode(text, SpecialText::kAsText));
  if (ids.size() < 2 * kHeldOut) return Status::InvalidInput(text_path + ": is too short");
  ids.resize(2 * kHeldOut);

  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  for (HeadRule& rule : plan->rules) {
    rule = HeadRule::Stream(kSink, kRecent);
    rule.positions = Positions::kCache;
  }
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> stream,
                      engine->NewSequence({.plan = plan, .prompt_tokens = 1, .max_tokens = num_tokens + 10000}));
  fmt::print("{:>10} {:>14} {:>14} {:>12} {:>10}\n", "tokens", "us per token", "resident MB", "KV MB", "NLL");
  // Sampled, so that the stream does not fall into a loop.
  std::vector<int32_t> prompt{0};
  std::optional<Sample> first;
  for (int64_t done = 0; done < num_tokens;) {
    const int64_t step = done == 0 ? 10000 : std::min<int64_t>(num_tokens - done, done < 100000 ? 90000 : 100000);
    Request request;
    request.prompt = prompt;
    request.sequence = stream;
    request.max_new_tokens = step;
    request.sampling = {.temperature = temperature, .top_p = 0.95f, .seed = static_cast<uint64_t>(done)};
    request.eos = EosMode::kIgnore;
    request.output = Request::Output::kStreamOnly;
    const auto start = std::chrono::steady_clock::now();
    HW_ASSIGN_OR_RETURN(const RequestResult result, engine->Run(std::move(request)));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    done += step;
    prompt = {5};  // any token goes on with the stream
    Sample sample{.kv_bytes = result.metrics.kv_bytes};
    HW_ASSIGN_OR_RETURN(sample.nll, HeldOutNll(*engine, *stream, ids));
    // Behind the first prefill, for which a backend may load a library.
    sample.resident_bytes = ReadProcessMemory().resident_bytes;
    fmt::print("{:>10} {:>14.1f} {:>14.2f} {:>12.3f} {:>10.5f}\n", done, 1e6 * seconds / static_cast<double>(step),
               static_cast<double>(sample.resident_bytes) / 1e6, static_cast<double>(sample.kv_bytes) / 1e6,
               sample.nll);
    std::fflush(stdout);
    if (!first) first = sample;
    HW_RETURN_IF_ERROR(CheckSteady(*first, sample, done));
  }
  fmt::print("{}\n", engine->backend_description());
  return Status::Ok();
}

}  // namespace
}  // namespace headwise

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: stream_soak MODEL_FOLDER TEXT_FILE [NUM_TOKENS [BACKEND [TEMPERATURE]]]\n");
    return 2;
  }
  const headwise::Status status =
      headwise::Soak(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 1000000, argc > 4 ? argv[4] : "cpu",
                     argc > 5 ? static_cast<float>(std::atof(argv[5])) : 1.0f);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  return status.ok() ? 0 : 1;
}
