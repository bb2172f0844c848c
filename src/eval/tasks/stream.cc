// headwise eval stream: an endless text of lines with a question every few lines, StreamingLLM's StreamEval
// [streaming-llm §4.4]. What is asked stands a fixed number of lines back, or at growing distances; a plan that keeps a
// window answers as long as the line is in it, and goes on for ever.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <utility>

#include "base/mix_seed.h"
#include "base/process_memory.h"
#include "data/stream_lines.h"
#include "data/token_samples.h"
#include "engine/sequence.h"
#include "eval/asked_task.h"
#include "eval/judge.h"
#include "eval/task_run.h"
#include "eval/tasks/tasks.h"

namespace headwise {
namespace {

// A stream is measured in so many parts, for the curves over its length.
constexpr int64_t kCurvePoints = 50;

struct EncodedBlock {
  std::vector<int32_t> ids;     // text and question
  std::vector<int32_t> answer;  // the right one, which goes into the stream whatever the model said
  LineBlock block;
};

struct EncodedStream {
  int64_t length = 0;
  int64_t case_idx = 0;
  std::vector<EncodedBlock> blocks;
  int64_t num_tokens = 0;
};

class StreamTask : public Task {
 public:
  struct Options {
    std::vector<int64_t> lengths;
    int64_t max_new_tokens = 48;  // models repeat the question's words before the number
    std::vector<EncodedStream> streams;
  };
  explicit StreamTask(Options options) : options_(std::move(options)) {}

  const std::vector<int64_t>& lengths() const override { return options_.lengths; }
  int64_t NumResults() const override;
  std::vector<CaseText> Cases() const override;
  Status Run(TaskRun& run) override;

 private:
  Status RunStream(TaskRun& run, const EncodedStream& stream, const Subject& subject) const;
  Result<CaseResult> Ask(Engine& engine, const Sequence& sequence, const EncodedBlock& block) const;

  Options options_;
};

int64_t StreamTask::NumResults() const {
  size_t num_results = 0;
  for (const EncodedStream& stream : options_.streams) num_results += stream.blocks.size() + 1;
  return static_cast<int64_t>(num_results);
}

std::vector<CaseText> StreamTask::Cases() const {
  std::vector<CaseText> texts;
  for (const EncodedStream& stream : options_.streams) {
    int64_t question_idx = 0;
    for (const EncodedBlock& each : stream.blocks) {
      texts.push_back({.length = stream.length,
                       .case_idx = stream.case_idx,
                       .question_idx = question_idx++,
                       .prompt = each.block.text + each.block.question,
                       .expected = {std::to_string(each.block.expected_number)}});
    }
  }
  return texts;
}

// On a fork: what the model says leaves no trace in the stream, so that all plans read the same text.
Result<CaseResult> StreamTask::Ask(Engine& engine, const Sequence& sequence, const EncodedBlock& block) const {
  Request request;
  HW_ASSIGN_OR_RETURN(request.sequence, engine.Fork(sequence));
  request.prompt = {block.ids.back()};
  request.max_new_tokens = options_.max_new_tokens;
  request.stop = {"\n"};
  HW_ASSIGN_OR_RETURN(const RequestResult answer, engine.Run(std::move(request)));
  const std::vector<std::string> expected = {std::to_string(block.block.expected_number)};
  CaseResult result;
  result.scores = {{"accuracy", Recall(answer.text, expected, IsNumber)}};
  result.tags = {{"distance", fmt::format("{} lines", block.block.distance)}};
  result.answer = answer.text;
  result.new_tokens = answer.metrics.new_tokens;
  result.seconds = answer.metrics.prefill_seconds + answer.metrics.decode_seconds;
  result.kv_bytes = answer.metrics.kv_bytes;
  result.kv_peak_bytes = answer.metrics.kv_peak_bytes;
  return result;
}

Status Read(Engine& engine, const std::shared_ptr<Sequence>& sequence, std::span<const int32_t> ids) {
  if (ids.empty()) return Status::Ok();
  ForcedRun run;
  run.sequence = sequence;
  run.ids = ids;
  return engine.RunForced(run);
}

// Figures over the length of a stream.
class StreamCurves {
 public:
  explicit StreamCurves(int64_t num_tokens) : tokens_per_point_(std::max<int64_t>(1, num_tokens / kCurvePoints)) {}

  void Add(int64_t num_tokens, double seconds, int64_t num_read, int64_t kv_bytes) {
    seconds_ += seconds;
    num_read_ += num_read;
    if (num_tokens < next_) return;
    next_ = num_tokens + tokens_per_point_;
    const auto x = static_cast<double>(num_tokens);
    curves_["kv_bytes"].emplace_back(x, static_cast<double>(kv_bytes));
    curves_["resident_bytes"].emplace_back(x, static_cast<double>(ReadProcessMemory().resident_bytes));
    curves_["ms_per_token"].emplace_back(x, seconds_ * 1e3 / static_cast<double>(num_read_));
    seconds_ = 0;
    num_read_ = 0;
  }
  const std::map<std::string, Curve>& curves() const { return curves_; }

 private:
  int64_t tokens_per_point_;
  int64_t next_ = 0;
  double seconds_ = 0;
  int64_t num_read_ = 0;
  std::map<std::string, Curve> curves_;
};

Status StreamTask::RunStream(TaskRun& run, const EncodedStream& stream, const Subject& subject) const {
  using Clock = std::chrono::steady_clock;
  const auto num_questions = static_cast<int64_t>(stream.blocks.size());
  if (run.Has(subject, stream.length, stream.case_idx, num_questions)) return Status::Ok();
  Engine& engine = run.engine();
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> sequence,
                      engine.NewSequence({.plan = subject.At(stream.length),
                                          .prompt_tokens = static_cast<int64_t>(stream.blocks.front().ids.size()),
                                          .max_tokens = stream.num_tokens + options_.max_new_tokens}));
  StreamCurves curves(stream.num_tokens);
  double total_seconds = 0;
  for (int64_t question_idx = 0; question_idx < num_questions; ++question_idx) {
    const EncodedBlock& block = stream.blocks[static_cast<size_t>(question_idx)];
    const auto start = Clock::now();
    HW_RETURN_IF_ERROR(Read(engine, sequence, std::span(block.ids).first(block.ids.size() - 1)));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (!run.Has(subject, stream.length, stream.case_idx, question_idx)) {
      HW_ASSIGN_OR_RETURN(CaseResult result, Ask(engine, *sequence, block));
      result.length = stream.length;
      result.case_idx = stream.case_idx;
      result.question_idx = question_idx;
      result.prompt_tokens = Engine::NumTokens(*sequence) + 1;
      HW_RETURN_IF_ERROR(run.Add(subject, std::move(result)));
    }
    std::vector<int32_t> rest = {block.ids.back()};
    rest.insert(rest.end(), block.answer.begin(), block.answer.end());
    HW_RETURN_IF_ERROR(Read(engine, sequence, rest));
    total_seconds += seconds;
    curves.Add(Engine::NumTokens(*sequence), seconds, static_cast<int64_t>(block.ids.size()) - 1,
               Engine::KvBytes(*sequence));
  }
  CaseResult whole;
  whole.length = stream.length;
  whole.case_idx = stream.case_idx;
  whole.question_idx = num_questions;
  whole.curves = curves.curves();
  whole.prompt_tokens = stream.num_tokens;
  whole.seconds = total_seconds;
  whole.kv_bytes = Engine::KvBytes(*sequence);
  whole.kv_peak_bytes = sequence->cache->PeakBytes();
  return run.Add(subject, std::move(whole));
}

Status StreamTask::Run(TaskRun& run) {
  for (const EncodedStream& stream : options_.streams) {
    for (const Subject& subject : run.subjects()) {
      Status status = RunStream(run, stream, subject);
      if (!status.ok()) return std::move(status).Annotate(subject.info.name);
    }
  }
  return Status::Ok();
}

// Blocks until the next one would not fit.
Result<EncodedStream> EncodeStream(const TaskInput& input, const LineStreamOptions& options, uint64_t seed,
                                   int64_t length) {
  LineStream lines(options, seed);
  EncodedStream stream{.length = length, .case_idx = 0, .blocks = {}};
  while (true) {
    EncodedBlock encoded;
    encoded.block = lines.Next();
    const std::string text = encoded.block.text + encoded.block.question;
    if (stream.blocks.empty()) {
      HW_ASSIGN_OR_RETURN(encoded.ids, EncodePrompt(input.engine, text, {.bos = input.bos}));
    } else {
      HW_ASSIGN_OR_RETURN(encoded.ids, EncodeLaterPart(input.engine.tokenizer(), text));
    }
    HW_ASSIGN_OR_RETURN(encoded.answer, EncodeLaterPart(input.engine.tokenizer(), encoded.block.answer));
    const auto num_tokens = static_cast<int64_t>(encoded.ids.size() + encoded.answer.size());
    if (stream.num_tokens + num_tokens > length) break;
    stream.num_tokens += num_tokens;
    stream.blocks.push_back(std::move(encoded));
  }
  if (!stream.blocks.empty()) return stream;
  return Status::InvalidInput(fmt::format("a stream of {} tokens has no room for a question, expected more", length));
}

Result<std::unique_ptr<Task>> MakeStream(const TaskInput& input) {
  const NamedOptions& options = input.options;
  LineStreamOptions lines;
  HW_ASSIGN_OR_RETURN(lines.lines_between, options.IntOr("lines-between", lines.lines_between, 1, 100'000));
  HW_ASSIGN_OR_RETURN(lines.distances, options.IntsOr("distances", lines.distances, 1, 100'000));
  HW_RETURN_IF_ERROR(ValidateLineStreamOptions(lines));
  StreamTask::Options task;
  HW_ASSIGN_OR_RETURN(task.lengths, ReadLengths(options, {8192}, /*least=*/64));
  HW_ASSIGN_OR_RETURN(task.max_new_tokens, options.IntOr("max-new-tokens", task.max_new_tokens, 1, 1'000'000));
  HW_ASSIGN_OR_RETURN(const int64_t num_cases, options.IntOr("num-cases", 1, 1, 1'000'000));
  HW_ASSIGN_OR_RETURN(const int64_t seed, options.IntOr("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  for (const int64_t length : task.lengths) {
    for (int64_t i = 0; i < num_cases; ++i) {
      HW_ASSIGN_OR_RETURN(EncodedStream stream,
                          EncodeStream(input, lines, MixSeed(static_cast<uint64_t>(seed), length, i), length));
      stream.case_idx = i;
      task.streams.push_back(std::move(stream));
    }
  }
  return std::unique_ptr<Task>(std::make_unique<StreamTask>(std::move(task)));
}

}  // namespace

const TaskMethod kStreamTask = {
    .name = "stream",
    .title = "Questions in a stream (StreamEval)",
    .description = "an endless text of lines with a question every few lines",
    .options = {kLengthsOption,
                {"num-cases", "Streams per length"},
                {"lines-between", "Lines between two questions"},
                {"distances", "Lines from the asked one to the question, in turn: 20,40,80"},
                kMaxNewTokensOption,
                kSeedOption},
    .metrics = {{.name = "accuracy", .label = "right answers", .unit = ""}},
    .make = MakeStream,
};

}  // namespace headwise
