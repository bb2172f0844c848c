#include "run_lines.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/file.h"
#include "engine/prompt.h"
#include "generate.h"
#include "prompt_lines.h"
#include "terminal_line.h"

namespace headwise {
namespace {

// Where the lines go: a file, or standard output.
class LineSink {
 public:
  // An empty path is standard output. A file begins anew.
  static Result<LineSink> Open(const std::string& path) {
    LineSink sink;
    sink.path_ = path;
    if (path.empty()) return sink;
    sink.file_.reset(std::fopen(path.c_str(), "we"));
    if (sink.file_ == nullptr) return sink.CannotWrite();
    return sink;
  }

  Status Write(const Json& json) {
    if (file_ == nullptr) return PrintJson(json);
    const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    const bool is_written =
        std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() && std::fflush(file_.get()) == 0;
    return is_written ? Status::Ok() : CannotWrite();
  }

  // The last thing: a file system far away may say only now that it could not write.
  Status Close() { return file_ == nullptr || std::fclose(file_.release()) == 0 ? CheckOutput() : CannotWrite(); }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  Status CannotWrite() const { return Status::Io(fmt::format("{}: cannot write: {}", path_, std::strerror(errno))); }

  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
};

// The requests of all lines, on their way through an engine.
class LineRun {
 public:
  LineRun(const RunOptions& options, Engine& engine, std::vector<PromptLine> lines, std::vector<Request> requests,
          LineSink sink)
      : options_(options),
        engine_(engine),
        lines_(std::move(lines)),
        requests_(std::move(requests)),
        sink_(std::move(sink)) {}

  Status Run() {
    const InterruptGuard guard;
    // Lines on the same terminal show how far it is, and a bar would be in their way.
    TerminalLine terminal;
    const bool shows_lines = options_.out.empty() && ::isatty(STDOUT_FILENO) == 1;
    ProgressBar bar(shows_lines ? nullptr : &terminal, "prompts", static_cast<int64_t>(lines_.size()));
    while (num_written_ < lines_.size() && !guard.interrupted()) {
      bar.Update(static_cast<int64_t>(num_finished_));
      SubmitMore();
      HW_RETURN_IF_ERROR(engine_.Step().status());
      HW_RETURN_IF_ERROR(TakeFinished());
      HW_RETURN_IF_ERROR(WriteInOrder());
    }
    const bool is_interrupted = num_written_ < lines_.size();
    // An answer that is there is not thrown away because one before it is not.
    for (const auto& [idx, json] : finished_) HW_RETURN_IF_ERROR(sink_.Write(json));
    HW_RETURN_IF_ERROR(sink_.Close());
    if (is_interrupted) {
      return Status::Cancelled(
          fmt::format("interrupted: {} of {} prompts have their lines", num_finished_, lines_.size()));
    }
    return Status::Ok();
  }

  size_t num_failed() const { return num_failed_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t new_tokens() const { return new_tokens_; }

 private:
  Json LineOf(size_t idx) const {
    Json json = {{"index", idx}};
    if (!lines_[idx].id.is_null()) json["id"] = lines_[idx].id;
    return json;
  }

  void Fail(size_t idx, const Status& status) {
    Json json = LineOf(idx);
    json["error"] = status.message();
    Keep(idx, std::move(json));
    ++num_failed_;
  }

  void Keep(size_t idx, Json json) {
    finished_.emplace(idx, std::move(json));
    ++num_finished_;
  }

  void SubmitMore() {
    for (; running_.size() < static_cast<size_t>(options_.batch) && num_begun_ < requests_.size(); ++num_begun_) {
      Request request = std::move(requests_[num_begun_]);
      const Result<RequestId> id = Submit(num_begun_, std::move(request));
      if (id.ok()) {
        running_.emplace(*id, num_begun_);
      } else {
        Fail(num_begun_, id.status());
      }
    }
  }

  Result<RequestId> Submit(size_t idx, Request request) {
    const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
    HW_ASSIGN_OR_RETURN(request.max_new_tokens,
                        NewTokensWithin(options_, engine_, lines_[idx].max_new_tokens, prompt_tokens));
    lines_[idx].sampling = request.sampling;
    return engine_.Submit(std::move(request));
  }

  Status TakeFinished() {
    for (auto it = running_.begin(); it != running_.end();) {
      const auto [id, idx] = *it;
      if (engine_.Peek(id)->finish == FinishReason::kRunning) {
        ++it;
        continue;
      }
      HW_ASSIGN_OR_RETURN(const RequestResult result, engine_.Take(id));
      it = running_.erase(it);
      prompt_tokens_ += result.metrics.prompt_tokens;
      new_tokens_ += result.metrics.new_tokens;
      if (!result.status.ok()) {
        Fail(idx, result.status);
        continue;
      }
      Json json = LineOf(idx);
      json.update(RequestMetricsJson(result.metrics));
      AddAnswer(result, lines_[idx].sampling, engine_, json);
      Keep(idx, std::move(json));
    }
    return Status::Ok();
  }

  Status WriteInOrder() {
    for (auto it = finished_.begin(); it != finished_.end() && it->first == num_written_; ++num_written_) {
      HW_RETURN_IF_ERROR(sink_.Write(it->second));
      it = finished_.erase(it);
    }
    return Status::Ok();
  }

  const RunOptions& options_;
  Engine& engine_;
  std::vector<PromptLine> lines_;
  std::vector<Request> requests_;  // moved from where they have begun
  LineSink sink_;
  std::map<RequestId, size_t> running_;
  std::map<size_t, Json> finished_;  // lines that wait for those before them
  size_t num_begun_ = 0;
  size_t num_finished_ = 0;
  size_t num_written_ = 0;
  size_t num_failed_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t new_tokens_ = 0;
};

// Of --out, before there is anything to write.
Status CheckOut(const RunOptions& options) {
  if (options.out.empty()) return Status::Ok();
  HW_RETURN_IF_ERROR(CheckWritable(options.out));
  // It would be emptied.
  std::error_code error;
  if (!std::filesystem::equivalent(options.out, *options.prompts, error)) return Status::Ok();
  return Status::InvalidInput(fmt::format("{}: is the file of --prompts, expected another for --out", options.out));
}

// Nothing where no line is a conversation.
Result<std::optional<ChatFormat>> FindFormatFor(const std::vector<PromptLine>& lines, const RunOptions& options,
                                                const ChatSetup& setup, const Engine& engine) {
  if (std::ranges::any_of(lines, [&](const PromptLine& line) { return IsChat(line, options); })) {
    HW_ASSIGN_OR_RETURN(ChatFormat format, FindFormat(setup, engine));
    return std::optional(std::move(format));
  }
  if (options.chat_flags.Given() == nullptr) return std::optional<ChatFormat>();
  return Status::InvalidInput(
      fmt::format("{}: no line of {} has messages, which it is for", options.chat_flags.Given(), *options.prompts));
}

Result<std::vector<Request>> MakeRequests(const RunOptions& options, const ChatSetup& setup, const Engine& engine,
                                          const std::vector<PromptLine>& lines) {
  HW_ASSIGN_OR_RETURN(const std::optional<ChatFormat> format, FindFormatFor(lines, options, setup, engine));
  const bool draws =
      std::ranges::any_of(lines, [](const PromptLine& line) { return line.sampling.temperature > 0 && !line.seed; });
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<const HeadPlan> plan, LoadPlan(options.plan, engine));
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<const TokenConstraint> constraint, ReadConstraint(options, engine));
  const uint64_t first_seed = SamplingOf(options.sampling, draws).seed;
  std::vector<Request> requests;
  size_t most_tokens = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    HW_ASSIGN_OR_RETURN(Request request, MakeRequest(lines[i], options, engine, format ? &*format : nullptr));
    request.plan = plan;
    request.constraint = constraint;
    // Equal prompts are there to be answered differently.
    request.sampling.seed = lines[i].seed.value_or(first_seed + i);
    most_tokens = std::max(most_tokens, request.prompt.size());
    requests.push_back(std::move(request));
  }
  WarnBeyondTrainedLength(engine, static_cast<int64_t>(most_tokens));
  return requests;
}

}  // namespace

Status RunLines(const RunOptions& options) {
  HW_RETURN_IF_ERROR(CheckOut(options));
  HW_ASSIGN_OR_RETURN(const ChatSetup setup, ReadChatSetup(options.chat_flags));
  HW_ASSIGN_OR_RETURN(std::vector<PromptLine> lines, ReadPromptLines(options, setup.inputs));
  const size_t num_lines = lines.size();
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  HW_ASSIGN_OR_RETURN(std::vector<Request> requests, MakeRequests(options, setup, *engine, lines));
  HW_ASSIGN_OR_RETURN(LineSink sink, LineSink::Open(options.out));
  const auto start = std::chrono::steady_clock::now();
  LineRun run(options, *engine, std::move(lines), std::move(requests), std::move(sink));
  HW_RETURN_IF_ERROR(run.Run());
  if (options.stats) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print(stderr, "prompts   {} with {} tokens, {} new tokens in {:.3f} s: {:.1f} tokens/s\n", num_lines,
               run.prompt_tokens(), run.new_tokens(), seconds,
               seconds > 0 ? static_cast<double>(run.new_tokens()) / seconds : 0.0);
  }
  if (run.num_failed() == 0) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("{}: {} of {} prompts failed; their lines say why", *options.prompts, run.num_failed(), num_lines));
}

}  // namespace headwise
