// The engine for many threads: one thread of its own steps it, anybody submits. What a server of conversations sits on.
//
//   auto service = Service::Create(options);
//   auto answer = (*service)->Submit(request);               // from any thread
//   while (const auto event = (*answer)->Next()) Show(event->text);
//
// Thread-safety: everything in this header may be called from any thread, but one RequestStream belongs to one thread
// at a time (its Cancel to any). Nothing of a program ever runs on the engine's thread, so no client can hold it up:
// events wait in a queue per request, and a request whose queue is full is left out of the steps until its client has
// read. Sequences may be let go on any thread; calls that make one wait for the end of the running step.
//
// Errors: Submit says at once what is wrong with a request, or that it could never fit. What goes wrong later (memory
// that does not come, a device that fails) ends that request alone, with FinishReason::kError and its Status in the
// result. After Shutdown every call that asks for work gives kCancelled.
#ifndef HEADWISE_SERVICE_H_
#define HEADWISE_SERVICE_H_

#include <headwise/engine.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace headwise {

class PrefixCache;  // engine/prefix_cache.h

struct ServiceOptions {
  // Events that wait for one client before its request pauses; 1 to 2^20. A paused request keeps its memory: a server
  // that does not trust its clients cancels those that read too slowly.
  int64_t max_queued_events = 1024;
};

// What happened to a request. The texts of all its events make the whole text.
struct RequestEvent {
  std::optional<int32_t> token;  // generated; none in the final event
  // Of `token`, where Request::logprobs asks.
  std::optional<TokenLogprobs> logprobs = std::nullopt;
  std::string text;                     // that can be shown now: often empty, never half a character
  std::optional<RequestResult> result;  // in the final event, and only there
};

struct ServiceStats {
  int64_t num_running = 0;   // in the steps, or paused by their clients
  int64_t num_waiting = 0;   // for memory, or for the step under way to end
  int64_t num_finished = 0;  // since the beginning, however they ended
  int64_t kv_bytes = 0;      // held now, by running requests and kept sequences
  // Of these: in pages of heads that keep every token, and of heads that drop some. What forks share counts once.
  int64_t kv_bytes_full = 0;
  int64_t kv_bytes_bounded = 0;
  int64_t kv_peak_bytes = 0;
  int64_t kv_reserved_bytes = 0;  // promised; 0 without a limit
  int64_t kv_limit_bytes = 0;     // 0: none
  int64_t num_preemptions = 0;    // requests that gave their memory to others, since the beginning
  int64_t kv_host_bytes = 0;      // of these, in host memory now or promised room there
};

// Of a sequence, as of the last step.
struct SequenceSize {
  int64_t num_tokens = 0;  // in the cache
  int64_t kv_bytes = 0;
};

// A request's events, for whoever submitted it. Dropped before the final event it cancels the request.
class RequestStream {
 public:
  using Clock = std::chrono::steady_clock;
  struct Impl;

  explicit RequestStream(std::unique_ptr<Impl> impl);
  RequestStream(const RequestStream&) = delete;
  RequestStream& operator=(const RequestStream&) = delete;
  ~RequestStream();

  RequestId id() const;
  // The next event; waits for it. Nothing once the final event was taken.
  std::optional<RequestEvent> Next();
  // Nothing also where the deadline passed: is_over() tells.
  std::optional<RequestEvent> Next(Clock::time_point deadline);
  // Nothing also where there is none yet.
  std::optional<RequestEvent> Poll();
  // Whether the final event was taken.
  bool is_over() const;
  // Reads on to the end. kNotFound where the final event was taken already.
  Result<RequestResult> Wait();
  // From any thread. The final event still comes.
  void Cancel();

 private:
  std::unique_ptr<Impl> impl_;
};

class Service {
 public:
  static Result<std::unique_ptr<Service>> Create(const EngineOptions& engine, const ServiceOptions& options = {});
  // Over an engine that is already there; no request may be on it, and nobody else may use it from now on.
  static Result<std::unique_ptr<Service>> Create(std::unique_ptr<Engine> engine, const ServiceOptions& options = {});
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  // Shutdown(0). Not from inside an OnEvent.
  ~Service();

  // What does not change while it runs: config, shape, tokenizer, CanBeginFull.
  const Engine& engine() const;

  // Requests here have no on_text and no on_token.
  Result<std::unique_ptr<RequestStream>> Submit(Request request);
  // The same for programs with an event loop of their own: `on_ready` is called, on the engine's thread, for every
  // event that can be polled. It delays all requests while it runs, and must not throw.
  Result<std::unique_ptr<RequestStream>> SubmitPolled(Request request, std::function<void()> on_ready);
  // Events are handed to `on_event` in order, on a thread of the service that all such requests share; a slow one
  // delays the others' events, not the engine. Return false to cancel; the final event still comes. One that throws
  // cancels.
  using OnEvent = std::function<bool(const RequestEvent&)>;
  Result<RequestId> Submit(Request request, OnEvent on_event);
  // Unknown ids and requests that are over are passed over.
  void Cancel(RequestId id);
  // Submit and Wait. The request's own error, if it ends with one.
  Result<RequestResult> Run(Request request);
  // As the engine's, in steps with the other requests. on_row and on_progress run on the calling thread.
  Status RunForced(const ForcedRun& run);

  // As the engine's. A fork of a sequence that a request runs on has the text up to its newest token.
  Result<std::shared_ptr<Sequence>> NewSequence(const SequenceOptions& options);
  Result<std::shared_ptr<Sequence>> Fork(const Sequence& sequence);
  Result<std::shared_ptr<Sequence>> Fork(const Sequence& sequence, const SequenceOptions& options);

  // What a sequence holds, whether a request runs on it or not.
  Result<SequenceSize> SizeOf(const Sequence& sequence);

  // Texts that requests which ask for it (Request::reuse_prefix) go on from and leave behind; null: none. Holds for
  // those that are submitted from now on. What it keeps gives way where a sequence finds no memory.
  void UsePrefixCache(std::shared_ptr<PrefixCache> cache);

  // From now on a request that finds no memory while nothing runs waits for the sequences that the program keeps, as it
  // waits for requests that run: for programs that let all of them go sooner or later, as a server does. Without it
  // such a request ends with kOutOfMemory, so that nobody waits for himself.
  void WaitForKeptSequences();

  // As of the last step.
  ServiceStats stats() const;

  // Takes no more work, lets what is there go on for `grace`, without regard to who reads it, then cancels the rest.
  // When it returns nothing runs any more, and every request has its final event: streams keep theirs, and OnEvent has
  // been called, unless Shutdown was called inside an OnEvent. Again: a shorter grace counts from the new call.
  void Shutdown(std::chrono::milliseconds grace = std::chrono::milliseconds(0));

 private:
  class Impl;
  explicit Service(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVICE_H_
