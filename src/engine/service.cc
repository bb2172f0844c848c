#include <headwise/service.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/no_memory.h"
#include "engine/engine_impl.h"
#include "engine/event_delivery.h"
#include "engine/event_queue.h"
#include "engine/forced_relay.h"
#include "engine/mailbox.h"

namespace headwise {
namespace {

constexpr int64_t kMaxQueuedEvents = int64_t{1} << 20;
// Longer than any process runs; a deadline at the end of time would overflow.
constexpr std::chrono::milliseconds kLongestGrace = std::chrono::hours(24 * 365 * 10);

Status ShutDown() {
  return Status::Cancelled("the service is shut down");
}

Status CheckRequest(const Request& request) {
  if (!request.on_text && !request.on_token) return Status::Ok();
  return Status::InvalidInput("on_text, on_token: are set, but a service gives its text as events");
}

}  // namespace

// The stream's side of a request: its events, and the way to end it. Both may outlive the service.
struct RequestStream::Impl {
  RequestId id = 0;
  std::shared_ptr<EventQueue> events;
  std::function<void()> cancel;
};

RequestStream::RequestStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RequestStream::~RequestStream() {
  if (!is_over()) Cancel();
}
RequestId RequestStream::id() const {
  return impl_->id;
}
std::optional<RequestEvent> RequestStream::Next() {
  return impl_->events->Take(std::nullopt);
}
std::optional<RequestEvent> RequestStream::Next(Clock::time_point deadline) {
  return impl_->events->Take(deadline);
}
std::optional<RequestEvent> RequestStream::Poll() {
  return impl_->events->Take(Clock::time_point{});
}
bool RequestStream::is_over() const {
  return impl_->events->is_over();
}
void RequestStream::Cancel() {
  impl_->cancel();
}
Result<RequestResult> RequestStream::Wait() {
  while (std::optional<RequestEvent> event = Next()) {
    if (event->result) return *std::move(event->result);
  }
  return Status::NotFound(fmt::format("request {}: its final event was taken already", id()));
}

class Service::Impl {
 public:
  Impl(std::unique_ptr<Engine> engine, const ServiceOptions& options)
      : engine_(std::move(engine)), core_(*engine_->impl_), options_(options) {
    core_.parts().memory->OnFreed([mailbox = mailbox_] { mailbox->Wake(); });
    thread_ = std::thread([this] { Loop(); });
  }
  ~Impl() { Shutdown(std::chrono::milliseconds(0)); }

  const Engine& engine() const { return *engine_; }

  // `on_ready` may be empty.
  Result<std::unique_ptr<RequestStream>> SubmitStream(Request request, std::function<void()> on_ready) {
    HW_RETURN_IF_ERROR(CheckRequest(request));
    auto events = std::make_shared<EventQueue>(QueueOptions(std::move(on_ready)));
    HW_ASSIGN_OR_RETURN(const RequestId id, Enter(core_.Prepare(std::move(request), events)));
    RequestStream::Impl stream{.id = id, .events = std::move(events), .cancel = CancelOf(id)};
    return std::make_unique<RequestStream>(std::make_unique<RequestStream::Impl>(std::move(stream)));
  }

  Result<RequestId> Submit(Request request, OnEvent on_event) {
    HW_RETURN_IF_ERROR(CheckRequest(request));
    if (!on_event) return Status::InvalidInput("on_event: is empty, expected a function");
    auto client = std::make_shared<EventDelivery::Client>();
    client->on_event = std::move(on_event);
    // The engine's request keeps the client alive, the client its queue.
    client->events = std::make_unique<EventQueue>(
        QueueOptions([this, weak = std::weak_ptr(client)] { delivery_.Notify(weak.lock()); }));
    auto prepared = core_.Prepare(std::move(request), {client, client->events.get()});
    if (prepared.ok()) client->cancel = CancelOf((*prepared)->id());
    return Enter(std::move(prepared));
  }

  void Cancel(RequestId id) {
    core_.cancellations()->Cancel(id);
    mailbox_->Wake();
  }

  Status RunForced(const ForcedRun& run) {
    const auto relay = std::make_shared<ForcedRelay>([mailbox = mailbox_] { mailbox->Wake(); });
    HW_ASSIGN_OR_RETURN(const RequestId id, Enter(core_.Prepare(relay->Wrap(run), relay)));
    RequestResult result = relay->Serve(run, CancelOf(id));
    if (result.finish == FinishReason::kCancelled) return Status::Cancelled("stopped by the caller");
    return std::move(result.status);
  }

  // `ask` on the engine's thread, between steps.
  template <typename Answer, typename Ask>
  Result<Answer> AskEngine(Ask ask) {
    const auto asked = std::make_shared<std::promise<Result<Answer>>>();
    auto answer = asked->get_future();
    if (!mailbox_->Post([asked, ask = std::move(ask), this] { asked->set_value(ask(*engine_)); })) return ShutDown();
    return answer.get();
  }

  void UsePrefixCache(std::shared_ptr<PrefixCache> cache) {
    // A box that is closed takes no requests either.
    static_cast<void>(mailbox_->Post([this, cache = std::move(cache)] { core_.prefixes().SetCache(cache); }));
  }

  void WaitForKeptSequences() {
    static_cast<void>(mailbox_->Post([this] { core_.WaitForKept(); }));
  }

  ServiceStats stats() const {
    const std::lock_guard lock(mutex_);
    ServiceStats stats = stats_;
    // Who is on the way to the engine waits too: nobody is uncounted between Submit and the final event.
    stats.num_waiting = num_submitted_.load() - stats.num_running - stats.num_finished;
    return stats;
  }

  void Shutdown(std::chrono::milliseconds grace) {
    is_closing_->store(true);
    mailbox_->Close();
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, std::min(grace, kLongestGrace), [&] { return has_ended_; })) {
        lock.unlock();
        cancels_all_.store(true);
        mailbox_->Wake();
        lock.lock();
        changed_.wait(lock, [&] { return has_ended_; });
      }
    }
    if (delivery_.IsOwnThread()) return;
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
    delivery_.Finish();
  }

 private:
  EventQueue::Options QueueOptions(std::function<void()> on_event) const {
    return {.max_events = static_cast<size_t>(options_.max_queued_events),
            .is_unbounded = is_closing_,
            .on_event = std::move(on_event),
            .on_room = [mailbox = mailbox_] { mailbox->Wake(); }};
  }

  // To the engine's thread. Checks ran on the caller's: what is wrong with a request is known at once.
  Result<RequestId> Enter(Result<std::shared_ptr<RunningRequest>> prepared) {
    HW_RETURN_IF_ERROR(prepared.status());
    const RequestId id = (*prepared)->id();
    num_submitted_.fetch_add(1);
    const auto enter = [this, request = *std::move(prepared)] {
      Result<RequestId> accepted = core_.Accept(request);
      if (!accepted.ok()) core_.Refuse(request, std::move(accepted).status());
    };
    const Result<bool> posted = CatchNoMemory(kNewRequest, [&]() -> Result<bool> { return mailbox_->Post(enter); });
    if (posted.ok() && *posted) return id;
    num_submitted_.fetch_sub(1);
    return posted.ok() ? ShutDown() : posted.status();
  }

  // Takes no memory when it is called, which may be after the service's end.
  std::function<void()> CancelOf(RequestId id) {
    return [mailbox = mailbox_, cancellations = core_.cancellations(), id] {
      cancellations->Cancel(id);
      mailbox->Wake();
    };
  }

  void Loop() {
    while (true) {
      mailbox_->RunAll();
      if (cancels_all_.exchange(false)) core_.CancelAll();
      const bool has_moved = core_.Step();
      PublishStats();
      const bool is_idle = core_.num_running() + core_.num_waiting() == 0;
      if (!has_moved && !mailbox_->Wait(is_idle)) break;
    }
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

  void PublishStats() {
    ServiceStats stats{.num_running = static_cast<int64_t>(core_.num_running()),
                       .num_finished = core_.num_finished(),
                       .num_preemptions = core_.num_preemptions()};
    {
      KvMemory& memory = *core_.parts().memory;
      const KvMemory::Hold hold(memory);
      stats.kv_bytes = memory.usage().bytes;
      stats.kv_bytes_bounded = memory.usage().bounded_bytes;
      stats.kv_bytes_full = stats.kv_bytes - stats.kv_bytes_bounded;
      stats.kv_peak_bytes = memory.usage().peak_bytes;
      stats.kv_reserved_bytes = memory.reserved_bytes;
      stats.kv_limit_bytes = memory.limit_bytes;
      stats.kv_host_bytes = memory.host_bytes;
    }
    const std::lock_guard lock(mutex_);
    stats_ = stats;
  }

  std::unique_ptr<Engine> engine_;
  EngineImpl& core_;  // of engine_; its thread's, but for Prepare
  ServiceOptions options_;
  // Shared with streams, which may outlive the service.
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::shared_ptr<std::atomic<bool>> is_closing_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> cancels_all_ = false;
  std::atomic<int64_t> num_submitted_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ServiceStats stats_;      // as of the last step, guarded by mutex_; who waits is counted when asked
  bool has_ended_ = false;  // the engine's thread, guarded by mutex_
  std::mutex join_mutex_;
  EventDelivery delivery_;
  std::thread thread_;  // uses all of the above
};

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Service::~Service() = default;

Result<std::unique_ptr<Service>> Service::Create(const EngineOptions& engine, const ServiceOptions& options) {
  HW_ASSIGN_OR_RETURN(std::unique_ptr<Engine> made, Engine::Create(engine));
  return Create(std::move(made), options);
}

Result<std::unique_ptr<Service>> Service::Create(std::unique_ptr<Engine> engine, const ServiceOptions& options) {
  if (options.max_queued_events < 1 || options.max_queued_events > kMaxQueuedEvents) {
    return Status::InvalidInput(
        fmt::format("max_queued_events is {}, expected 1 to {}", options.max_queued_events, kMaxQueuedEvents));
  }
  if (engine == nullptr) return Status::InvalidInput("engine: is null, expected one to serve");
  const size_t num_requests = engine->impl_->num_running() + engine->impl_->num_waiting();
  if (num_requests > 0) {
    return Status::InvalidInput(fmt::format("engine: {} requests are on it, expected none", num_requests));
  }
  return std::unique_ptr<Service>(new Service(std::make_unique<Impl>(std::move(engine), options)));
}

const Engine& Service::engine() const {
  return impl_->engine();
}
Result<std::unique_ptr<RequestStream>> Service::Submit(Request request) {
  return CatchNoMemory(kNewRequest, [&] { return impl_->SubmitStream(std::move(request), {}); });
}
Result<std::unique_ptr<RequestStream>> Service::SubmitPolled(Request request, std::function<void()> on_ready) {
  return CatchNoMemory(kNewRequest, [&] { return impl_->SubmitStream(std::move(request), std::move(on_ready)); });
}
Result<RequestId> Service::Submit(Request request, OnEvent on_event) {
  return CatchNoMemory(kNewRequest, [&] { return impl_->Submit(std::move(request), std::move(on_event)); });
}
void Service::Cancel(RequestId id) {
  impl_->Cancel(id);
}
Result<RequestResult> Service::Run(Request request) {
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<RequestStream> stream, Submit(std::move(request)));
  HW_ASSIGN_OR_RETURN(RequestResult result, stream->Wait());
  if (!result.status.ok()) return std::move(result.status);
  return result;
}
Status Service::RunForced(const ForcedRun& run) {
  return CatchNoMemory(kNewRequest, [&] { return impl_->RunForced(run); });
}
Result<std::shared_ptr<Sequence>> Service::NewSequence(const SequenceOptions& options) {
  return CatchNoMemory(kNewSequence, [&] {
    return impl_->AskEngine<std::shared_ptr<Sequence>>(
        [options](Engine& engine) { return engine.NewSequence(options); });
  });
}
Result<std::shared_ptr<Sequence>> Service::Fork(const Sequence& sequence) {
  return CatchNoMemory(kNewSequence, [&] {
    return impl_->AskEngine<std::shared_ptr<Sequence>>([&sequence](Engine& engine) { return engine.Fork(sequence); });
  });
}
Result<std::shared_ptr<Sequence>> Service::Fork(const Sequence& sequence, const SequenceOptions& options) {
  return CatchNoMemory(kNewSequence, [&] {
    return impl_->AskEngine<std::shared_ptr<Sequence>>(
        [&sequence, options](Engine& engine) { return engine.Fork(sequence, options); });
  });
}
Result<SequenceSize> Service::SizeOf(const Sequence& sequence) {
  return CatchNoMemory("a question", [&] {
    return impl_->AskEngine<SequenceSize>([&sequence](Engine&) -> Result<SequenceSize> {
      if (sequence.cache == nullptr) return SequenceSize{};
      return SequenceSize{.num_tokens = Engine::NumTokens(sequence), .kv_bytes = Engine::KvBytes(sequence)};
    });
  });
}
void Service::UsePrefixCache(std::shared_ptr<PrefixCache> cache) {
  impl_->UsePrefixCache(std::move(cache));
}
void Service::WaitForKeptSequences() {
  impl_->WaitForKeptSequences();
}
ServiceStats Service::stats() const {
  return impl_->stats();
}
void Service::Shutdown(std::chrono::milliseconds grace) {
  impl_->Shutdown(grace);
}

}  // namespace headwise
