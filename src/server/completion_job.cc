#include "server/completion_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "engine/sequence.h"
#include "engine/token_logprobs.h"
#include "server/answer_form.h"
#include "server/openai_response.h"
#include "server/prompt_encoding.h"

namespace headwise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's
// More is refused with 429: who waits so long will have asked again.
constexpr int64_t kMaxWaiting = 4096;
// Shorter prompts are read again for each choice: a fork waits for a step.
constexpr size_t kLeastShared = 64;
// What an answer without a limit of its own gets at least under a limit of KV bytes.
constexpr int64_t kLeastNewTokens = 16;

std::string NewId(ApiKind kind) {
  std::random_device random;
  std::string id = kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-";
  for (int i = 0; i < 3; ++i) id += fmt::format("{:08x}", random());
  return id;
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// One prompt, and what its choices share.
struct JobPrompt {
  std::vector<int32_t> ids;
  int64_t max_new_tokens = 0;
  std::string text;                 // where it is echoed
  std::vector<LoggedToken> logged;  // where its log-probabilities are
};

// What of calls came piece by piece, as a whole.
void AddPieces(const std::vector<ToolCallDelta>& pieces, std::vector<ToolCallDelta>& calls) {
  for (const ToolCallDelta& piece : pieces) {
    if (piece.begins()) {
      calls.push_back(piece);
    } else {
      calls.back().arguments += piece.arguments;
    }
  }
}

struct Choice {
  size_t prompt = 0;
  std::string text;
  std::vector<LoggedToken> logged;
  std::optional<TokenLog> log;
  std::optional<ToolCallReader> reader;  // where there are tools to call
  std::vector<ToolCallDelta> calls;      // of a whole answer
  size_t shown_bytes = 0;                // of what was generated
  FinishReason finish = FinishReason::kRunning;
  AnswerTimes times;
};

// Thread-safety: what a reply needs is guarded by mutex_, which events, the handler and a worker take; the ids of what
// runs by a mutex of their own, because a client may leave while a piece is being written.
class CompletionJob : public std::enable_shared_from_this<CompletionJob> {
 public:
  CompletionJob(ApiRequest request, ServedModel& model, JobThreads threads, std::shared_ptr<HttpReply> reply)
      : request_(std::move(request)), model_(model), threads_(threads), reply_(std::move(reply)) {}

  void Start() {
    if (auto error = Prepare()) return reply_->Send(ErrorResponse(*error));
    reply_->OnGone([weak = weak_from_this()] {
      if (const auto job = weak.lock()) job->Leave();
    });
    if (!HasToWait()) {
      const std::lock_guard lock(mutex_);
      // All of them first: what is refused becomes a reply with its status.
      for (size_t i = 0; i < prompts_.size(); ++i) {
        if (auto error = SubmitChoices(i, {})) return Fail(*error);
      }
      for (size_t i = 0; i < prompts_.size(); ++i) OpenChoices(i);
      return;
    }
    WorkerThreads& workers = ReadsFirst() ? threads_.readers : threads_.compilers;
    const bool is_posted = workers.Post([job = shared_from_this()] {
      // Whatever it could not do memory for ends with the reply, which is let go.
      const Status status = CatchNoMemory("an answer", [&] { return job->RunPrompts(), Status::Ok(); });
      if (!status.ok()) job->Leave();
    });
    const std::lock_guard lock(mutex_);
    if (!is_posted) Fail(ToApiError(Status::Cancelled("")));
  }

 private:
  // Everything that can be wrong with a request and needs no engine to be found.
  std::optional<ApiError> Prepare() {
    const int64_t num_waiting =
        model_.service().stats().num_waiting + threads_.compilers.num_waiting() + threads_.readers.num_waiting();
    if (num_waiting >= kMaxWaiting) {
      return ApiError{.status = 429,
                      .message = fmt::format("{} requests are waiting, expected less before one more", num_waiting),
                      .code = "too_many_requests"};
    }
    ApiResult<NamedPlan> plan = model_.FindPlan(request_.plan);
    if (!plan.ok()) return plan.status();
    plan_ = *std::move(plan);
    if (request_.logprobs && !model_.engine().has_tokenizer()) {
      return InvalidField("logprobs", "logprobs: the model has no tokenizer, whose texts they have", "unsupported");
    }
    const char* form = FormParam(request_);
    if (form != nullptr && !GrammarCompiler::IsBuilt()) {
      return InvalidField(form, fmt::format("{}: {}", form, model_.Grammars().status().message()), "unsupported");
    }
    if (auto error = EncodePrompts()) return error;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      usage_.prompt_tokens += static_cast<int64_t>(prompts_[i].ids.size());
      for (int64_t n = 0; n < request_.n; ++n) {
        choices_.emplace_back().prompt = i;
        choices_.back().reader = CallReaderFor(model_, request_);
      }
    }
    usage_.plan = plan_.name;
    head_ = {.kind = request_.kind,
             .id = NewId(request_.kind),
             .created = static_cast<int64_t>(std::time(nullptr)),
             .model = model_.name(),
             .fingerprint = model_.fingerprint()};
    first_seed_ = request_.seed ? *request_.seed : std::random_device()();
    if (!ReusesPrefix() || WantsRows()) return std::nullopt;
    for (const JobPrompt& prompt : prompts_) {
      model_.FetchPrefix(plan_.plan.get(), Shares(prompt) ? SharedIds(prompt) : std::span(prompt.ids));
    }
    return std::nullopt;
  }

  std::optional<ApiError> EncodePrompts() {
    const bool is_chat = request_.kind == ApiKind::kChat;
    if (is_chat) {
      ApiResult<std::vector<int32_t>> ids = EncodeConversation(model_, request_.conversation, request_.tools);
      if (!ids.ok()) return ids.status();
      prompts_.emplace_back().ids = *std::move(ids);
      // The ends of the format's turns are ignored as the model's are.
      if (!request_.ignore_eos) {
        const auto& stops = model_.chat_format()->stop_ids();
        request_.stop_token_ids.insert(request_.stop_token_ids.end(), stops.begin(), stops.end());
      }
    }
    for (ApiPrompt& prompt : request_.prompts) {
      ApiResult<std::vector<int32_t>> ids = EncodeApiPrompt(model_, prompt);
      if (!ids.ok()) return ids.status();
      JobPrompt& added = prompts_.emplace_back();
      added.ids = *std::move(ids);
      if (!request_.echo) continue;
      if (const auto* text = std::get_if<std::string>(&prompt)) {
        added.text = *text;
      } else if (model_.engine().has_tokenizer()) {
        added.text = model_.engine().tokenizer().Decode(added.ids);
      }
    }
    for (JobPrompt& prompt : prompts_) {
      ApiResult<int64_t> max_new_tokens =
          NewTokensFor(model_, static_cast<int64_t>(prompt.ids.size()), request_.max_tokens,
                       is_chat ? std::numeric_limits<int64_t>::max() : kDefaultCompletionTokens);
      if (!max_new_tokens.ok()) {
        ApiError error = max_new_tokens.status();
        if (is_chat && error.param == "prompt") error.param = "messages";
        return error;
      }
      prompt.max_new_tokens = *max_new_tokens;
    }
    return std::nullopt;
  }

  bool ReusesPrefix() const { return request_.cache_prompt && model_.prefixes() != nullptr; }
  bool WantsRows() const { return request_.echo && request_.logprobs; }
  bool Shares(const JobPrompt& prompt) const {
    return request_.n > 1 && prompt.ids.size() >= kLeastShared && prompt.max_new_tokens > 0;
  }
  // A prompt before its choices, for as long as others' reading and memory take.
  bool ReadsFirst() const {
    return WantsRows() || std::ranges::any_of(prompts_, [&](const JobPrompt& prompt) { return Shares(prompt); });
  }
  bool HasToWait() const { return FormParam(request_) != nullptr || ReadsFirst(); }

  // On a worker, prompt by prompt.
  void RunPrompts() {
    if (FormParam(request_) != nullptr) {
      ApiResult<AnswerForm> form = CompileForm(model_, request_);
      if (!form.ok()) {
        const std::lock_guard lock(mutex_);
        return Fail(form.status());
      }
      form_ = *std::move(form);
    }
    for (size_t i = 0; i < prompts_.size() && !is_gone_; ++i) {
      auto error = RunPrompt(i);
      const std::lock_guard lock(mutex_);
      if (is_over_) return;
      if (error) return Fail(*error);
    }
  }

  std::optional<ApiError> RunPrompt(size_t prompt_idx) {
    JobPrompt& prompt = prompts_[prompt_idx];
    std::vector<std::shared_ptr<Sequence>> sequences;
    if (prompt.ids.size() > 1 && (WantsRows() || Shares(prompt))) {
      // Where there is no room for one now its choices wait for memory as other requests do, each with the whole
      // prompt.
      Result<std::shared_ptr<Sequence>> begun = BeginSequence(prompt);
      if (!begun.ok() && begun.status().code() != StatusCode::kOutOfMemory) return RefusedError(begun.status());
      Status read = WantsRows()  ? ReadRows(prompt, begun.ok() ? *begun : nullptr)
                    : begun.ok() ? ReadPrompt(prompt, *begun)
                                 : Status::Ok();
      if (!read.ok()) return begun.ok() ? ToApiError(read) : RefusedError(read);
      if (begun.ok()) sequences = Forks(*std::move(begun));
    } else if (WantsRows()) {
      prompt.logged = {{.id = prompt.ids.front(), .logprob = std::nullopt, .top = {}}};
    }
    const std::lock_guard lock(mutex_);
    if (is_over_) return std::nullopt;
    if (prompt.max_new_tokens == 0 && !sequences.empty()) {
      FinishChoices(prompt_idx, *sequences.front());
      return std::nullopt;
    }
    if (auto error = SubmitChoices(prompt_idx, std::move(sequences))) return error;
    OpenChoices(prompt_idx);
    return std::nullopt;
  }

  Result<std::shared_ptr<Sequence>> BeginSequence(const JobPrompt& prompt) {
    const auto prompt_tokens = static_cast<int64_t>(prompt.ids.size());
    return model_.service().NewSequence(
        {.plan = plan_.plan, .prompt_tokens = prompt_tokens, .max_tokens = prompt_tokens + prompt.max_new_tokens});
  }

  // All of the prompt but its last token, which each choice reads by itself.
  std::span<const int32_t> SharedIds(const JobPrompt& prompt) const {
    return std::span(prompt.ids).first(prompt.ids.size() - 1);
  }

  Status ReadPrompt(const JobPrompt& prompt, const std::shared_ptr<Sequence>& sequence) {
    const auto ids = SharedIds(prompt);
    Request request;
    request.prompt.assign(ids.begin(), ids.end());
    request.sequence = sequence;
    request.max_new_tokens = 0;
    request.output = Request::Output::kStreamOnly;
    request.reuse_prefix = ReusesPrefix();
    request.priority = request_.priority;
    request.client = request_.client;
    HW_ASSIGN_OR_RETURN(const std::unique_ptr<RequestStream> stream, model_.service().Submit(std::move(request)));
    AddId(stream->id());
    HW_ASSIGN_OR_RETURN(RequestResult result, stream->Wait());
    if (result.finish == FinishReason::kCancelled) return Status::Cancelled("");
    const std::lock_guard lock(mutex_);
    usage_.cached_tokens += result.metrics.reused_tokens;
    return std::move(result.status);
  }

  // The prompt's log-probabilities: a row is of the token behind it. Without a sequence it is read on one of its own.
  Status ReadRows(JobPrompt& prompt, const std::shared_ptr<Sequence>& sequence) {
    TokenLog log(model_.engine().tokenizer(), 0);
    log.Push({.id = prompt.ids.front(), .logprob = std::nullopt, .top = {}});
    ForcedRun run;
    run.ids = sequence == nullptr ? std::span<const int32_t>(prompt.ids) : SharedIds(prompt);
    run.sequence = sequence;
    if (sequence == nullptr) run.plan = plan_.plan;
    run.rows = ForcedRun::Rows::kEvery;
    run.priority = request_.priority;
    run.client = request_.client;
    run.on_row = [&](int64_t position, std::span<const float> logits, std::span<const float>) {
      const auto next = static_cast<size_t>(position) + 1;
      if (next == prompt.ids.size()) return true;
      const TokenLogprobs logprobs = LogprobsOf(logits, prompt.ids[next], *request_.logprobs);
      log.Push({.id = logprobs.chosen.id, .logprob = logprobs.chosen.logprob, .top = logprobs.top});
      return !is_gone_.load();
    };
    HW_RETURN_IF_ERROR(model_.service().RunForced(run));
    prompt.logged = log.TakeAll();
    return Status::Ok();
  }

  // One for each choice; fewer where there is no room for all.
  std::vector<std::shared_ptr<Sequence>> Forks(std::shared_ptr<Sequence> sequence) {
    std::vector<std::shared_ptr<Sequence>> sequences = {sequence};
    for (int64_t i = 1; i < request_.n && !is_gone_; ++i) {
      Result<std::shared_ptr<Sequence>> fork = model_.service().Fork(*sequence);
      if (!fork.ok()) break;
      sequences.push_back(*std::move(fork));
    }
    return sequences;
  }

  Request MakeRequest(size_t choice_idx, const std::shared_ptr<Sequence>& sequence) const {
    const JobPrompt& prompt = prompts_[choices_[choice_idx].prompt];
    Request request;
    if (sequence == nullptr) {
      request.prompt = prompt.ids;
      request.plan = plan_.plan;
      request.reuse_prefix = ReusesPrefix();
    } else {
      request.prompt = {prompt.ids.back()};
      request.sequence = sequence;
    }
    request.sampling = request_.sampling;
    request.sampling.seed = first_seed_ + choice_idx;
    request.max_new_tokens = prompt.max_new_tokens;
    request.stop = request_.stop;
    request.stop_tokens = request_.stop_token_ids;
    request.eos = request_.ignore_eos ? EosMode::kIgnore : EosMode::kStop;
    request.constraint = form_.constraint;
    request.logprobs = request_.logprobs;
    request.priority = request_.priority;
    request.client = request_.client;
    request.output = Request::Output::kStreamOnly;
    return request;
  }

  // Of one prompt. Those without a sequence read the whole of it. Requires: mutex_; no event comes before it is let go.
  std::optional<ApiError> SubmitChoices(size_t prompt_idx, std::vector<std::shared_ptr<Sequence>> sequences) {
    for (int64_t n = 0; n < request_.n; ++n) {
      const size_t choice_idx = ChoiceOf(prompt_idx, n);
      const auto at = static_cast<size_t>(n);
      const std::shared_ptr<Sequence> sequence = at < sequences.size() ? std::move(sequences[at]) : nullptr;
      const Result<RequestId> id = SubmitChoice(choice_idx, sequence);
      if (!id.ok()) return RefusedError(id.status());
      AddId(*id);
    }
    return std::nullopt;
  }

  size_t ChoiceOf(size_t prompt_idx, int64_t n) const {
    return prompt_idx * static_cast<size_t>(request_.n) + static_cast<size_t>(n);
  }

  // Requires: mutex_.
  void OpenChoices(size_t prompt_idx) {
    for (int64_t n = 0; n < request_.n; ++n) OpenChoice(ChoiceOf(prompt_idx, n));
  }

  Result<RequestId> SubmitChoice(size_t choice_idx, const std::shared_ptr<Sequence>& sequence) {
    Request request = MakeRequest(choice_idx, sequence);
    while (true) {
      Result<RequestId> id =
          model_.service().Submit(request, [job = shared_from_this(), choice_idx](const RequestEvent& event) {
            return job->OnEvent(choice_idx, event);
          });
      // Whoever named no limit gets what the limit of KV bytes leaves him.
      const bool is_too_long = !id.ok() && id.status().code() == StatusCode::kOutOfMemory && !request_.max_tokens &&
                               sequence == nullptr && request.max_new_tokens > kLeastNewTokens;
      if (!is_too_long) return id;
      request.max_new_tokens /= 2;
    }
  }

  // What comes before the first token. Requires: mutex_.
  void OpenChoice(size_t choice_idx) {
    Choice& choice = choices_[choice_idx];
    JobPrompt& prompt = prompts_[choice.prompt];
    choice.times.prompt_tokens = static_cast<int64_t>(prompt.ids.size());
    if (request_.logprobs) choice.log.emplace(model_.engine().tokenizer(), CountCharacters(prompt.text));
    if (!request_.stream) {
      choice.text = prompt.text;
      choice.logged = prompt.logged;
      return;
    }
    if (!std::exchange(has_begun_, true)) {
      reply_->Begin(
          {.content_type = "text/event-stream; charset=utf-8", .body = {}, .fields = {{"Cache-Control", "no-cache"}}});
    }
    const bool is_chat = request_.kind == ApiKind::kChat;
    if (is_chat || request_.echo) WriteChunk(choice_idx, Piece::kFirst, prompt.text, prompt.logged, std::nullopt);
  }

  bool OnEvent(size_t choice_idx, const RequestEvent& event) {
    const std::lock_guard lock(mutex_);
    Choice& choice = choices_[choice_idx];
    if (event.token) NoteToken(choice, event);
    if (event.result) NoteEnd(choice, *event.result);
    if (is_over_) return false;
    choice.shown_bytes += event.text.size();
    std::vector<LoggedToken> tokens;
    if (choice.log) {
      // Behind the beginning of a stop string there is no text any more, and no token.
      const bool takes_all = event.result && event.result->finish != FinishReason::kStopString;
      tokens = takes_all ? choice.log->TakeAll() : choice.log->TakeWithin(choice.shown_bytes);
    }
    ToolCallReader::Piece piece = PieceOf(choice, event);
    if (!request_.stream) {
      choice.text += piece.text;
      AddPieces(piece.calls, choice.calls);
      choice.logged.insert(choice.logged.end(), tokens.begin(), tokens.end());
    } else {
      if (!piece.text.empty() || (!tokens.empty() && piece.calls.empty())) {
        WriteChunk(choice_idx, Piece::kText, piece.text, std::exchange(tokens, {}), std::nullopt);
      }
      if (!piece.calls.empty()) WriteCalls(choice_idx, piece.calls, tokens);
    }
    if (event.result) FinishChoice(choice_idx, *event.result);
    return !is_gone_;
  }

  // What of the answer an event brings: its text, or where there are tools what of that is text and what calls.
  ToolCallReader::Piece PieceOf(Choice& choice, const RequestEvent& event) const {
    if (!choice.reader) return {.text = event.text, .calls = {}};
    ToolCallReader::Piece piece = choice.reader->Push(event.text);
    const auto add = [&](ToolCallReader::Piece more) {
      piece.text += more.text;
      piece.calls.insert(piece.calls.end(), more.calls.begin(), more.calls.end());
    };
    // Special tokens have no text of their own.
    if (form_.marker && event.token == form_.marker) add(choice.reader->Push(kMistralMarker));
    if (event.result) add(choice.reader->Finish());
    return piece;
  }

  void NoteToken(Choice& choice, const RequestEvent& event) {
    choice.times.last_token_seconds = SecondsSince(begun_);
    if (choice.times.first_token_seconds == 0) choice.times.first_token_seconds = choice.times.last_token_seconds;
    if (!choice.log || !event.logprobs) return;
    choice.log->Push({.id = *event.token, .logprob = event.logprobs->chosen.logprob, .top = event.logprobs->top});
  }

  void NoteEnd(Choice& choice, const RequestResult& result) {
    choice.times.new_tokens = result.metrics.new_tokens;
    choice.times.total_seconds = SecondsSince(begun_);
    model_.metrics().AddAnswer(choice.times, result.finish);
  }

  // Requires: mutex_, not is_over_.
  void FinishChoice(size_t choice_idx, const RequestResult& result) {
    if (result.finish == FinishReason::kError) return Fail(ToApiError(result.status));
    if (result.finish == FinishReason::kCancelled) return Fail(ToApiError(Status::Cancelled("")));
    Choice& choice = choices_[choice_idx];
    choice.finish = result.finish;
    usage_.Add(result.metrics);
    // As a prompt is counted once, whatever the number of its choices.
    if (choice_idx == ChoiceOf(choice.prompt, 0)) usage_.cached_tokens += result.metrics.reused_tokens;
    if (request_.stream) WriteChunk(choice_idx, Piece::kLast, "", {}, result.finish);
    if (++num_over_ == choices_.size()) Finish();
  }

  // Those of a prompt that is echoed and no more. Requires: mutex_.
  void FinishChoices(size_t prompt_idx, const Sequence& sequence) {
    const KvCacheBytes bytes = sequence.cache->Bytes();
    RequestResult result;
    result.finish = FinishReason::kLength;
    result.metrics = {.kv_bytes = bytes.total(),
                      .kv_bytes_full = bytes.full,
                      .kv_bytes_bounded = bytes.bounded,
                      .kv_peak_bytes = sequence.cache->PeakBytes()};
    for (int64_t n = 0; n < request_.n; ++n) {
      const size_t choice_idx = ChoiceOf(prompt_idx, n);
      OpenChoice(choice_idx);
      NoteEnd(choices_[choice_idx], result);
      FinishChoice(choice_idx, result);
    }
  }

  void WriteChunk(size_t choice_idx, Piece piece, const std::string& text, std::span<const LoggedToken> tokens,
                  std::optional<FinishReason> finish) {
    ApiJson logprobs = tokens.empty() ? ApiJson() : LogprobsJson(request_.kind, tokens, model_.engine().tokenizer());
    const Choice& choice = choices_[choice_idx];
    const bool has_calls = choice.reader && choice.reader->num_calls() > 0;
    Write(ChunkJson(head_, static_cast<int64_t>(choice_idx), piece, text, std::move(logprobs), finish, has_calls));
  }

  void WriteCalls(size_t choice_idx, std::span<const ToolCallDelta> calls, std::span<const LoggedToken> tokens) {
    ApiJson logprobs = tokens.empty() ? ApiJson() : LogprobsJson(request_.kind, tokens, model_.engine().tokenizer());
    Write(CallsChunkJson(head_, static_cast<int64_t>(choice_idx), calls, std::move(logprobs)));
  }

  void Write(ApiJson chunk) {
    // As OpenAI: null in all chunks but the last, where it is asked for.
    if (request_.include_usage) chunk["usage"] = nullptr;
    if (!reply_->Write(EventText(chunk))) Leave();
  }

  // Requires: mutex_.
  void Finish() {
    is_over_ = true;
    if (request_.stream) {
      if (request_.include_usage) reply_->Write(EventText(UsageChunkJson(head_, usage_)));
      reply_->Write(kLastEvent);
      reply_->End();
      return reply_.reset();
    }
    const auto send = [job = shared_from_this(), reply = std::exchange(reply_, nullptr)] {
      // Without memory for it the reply ends as it is let go.
      const Status status = CatchNoMemory("an answer", [&] { return reply->Send(job->Answer()), Status::Ok(); });
      if (!status.ok()) job->Leave();
    };
    // Log-probabilities make megabytes of it, and the events of everybody else come by this thread.
    if (!request_.logprobs || !threads_.compilers.Post(send)) send();
  }

  // Whole, when nothing comes any more.
  HttpResponse Answer() const {
    ApiJson choices = ApiJson::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      ApiJson logprobs =
          request_.logprobs ? LogprobsJson(request_.kind, choice.logged, model_.engine().tokenizer()) : ApiJson();
      choices.push_back(ChoiceJson(request_.kind, static_cast<int64_t>(i), choice.text, std::move(logprobs),
                                   choice.finish, choice.calls));
    }
    return {.body = ToText(ResponseJson(head_, std::move(choices), usage_))};
  }

  // Requires: mutex_.
  void Fail(const ApiError& error) {
    if (std::exchange(is_over_, true)) return;
    if (has_begun_) {
      reply_->Write(EventText(ErrorJson(error)));
      reply_->End();
    } else {
      reply_->Send(ErrorResponse(error));
    }
    reply_.reset();
    CancelAll();
  }

  // Nobody reads any more. From any thread, with or without mutex_.
  void Leave() {
    is_gone_ = true;
    CancelAll();
  }

  void AddId(RequestId id) {
    const std::lock_guard lock(ids_mutex_);
    ids_.push_back(id);
    if (is_cancelled_) model_.service().Cancel(id);
  }
  void CancelAll() {
    const std::lock_guard lock(ids_mutex_);
    is_cancelled_ = true;
    for (const RequestId id : ids_) model_.service().Cancel(id);
  }

  const Clock::time_point begun_ = Clock::now();
  ApiRequest request_;
  ServedModel& model_;
  JobThreads threads_;
  NamedPlan plan_;
  ResponseHead head_;
  uint64_t first_seed_ = 0;
  AnswerForm form_;  // compiled before the first answer begins
  std::vector<JobPrompt> prompts_;

  std::mutex mutex_;
  std::shared_ptr<HttpReply> reply_;  // null once it has ended
  std::vector<Choice> choices_;       // of the first prompt, of the second, ...
  Usage usage_;
  size_t num_over_ = 0;
  bool has_begun_ = false;  // pieces of a stream
  bool is_over_ = false;

  std::atomic<bool> is_gone_ = false;
  std::mutex ids_mutex_;
  std::vector<RequestId> ids_;  // guarded by ids_mutex_, as is the next
  bool is_cancelled_ = false;
};

}  // namespace

void RunCompletionJob(ApiRequest request, ServedModel& model, JobThreads threads, std::shared_ptr<HttpReply> reply) {
  std::make_shared<CompletionJob>(std::move(request), model, threads, std::move(reply))->Start();
}

}  // namespace headwise
