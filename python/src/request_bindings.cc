// Requests that draw: in one piece (Pending), or token by token (Stream).
#include <headwise/service.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bound_engine.h"
#include "calls.h"
#include "engine/admission.h"
#include "python_errors.h"
#include "waker.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headwise::python {
namespace {

// How long a wait lasts before signals are looked for: Ctrl-C need not end it, as another thread may be given it.
constexpr int kSignalIntervalMs = 50;

// A request of which only the result is wanted. It may outlive the engine.
class Pending {
 public:
  Pending(const std::shared_ptr<OpenedEngine>& opened, std::shared_ptr<Waker> waker, int64_t key)
      : opened_(opened), waker_(std::move(waker)), key_(key) {}

  static std::shared_ptr<Pending> Submit(const std::shared_ptr<OpenedEngine>& opened, Request request,
                                         std::shared_ptr<Waker> waker, int64_t key) {
    auto pending = std::make_shared<Pending>(opened, std::move(waker), key);
    // Events are not waited for one by one: they come on a thread of the service.
    pending->id_ = Value(WithoutGil([&] {
      return opened->service->Submit(std::move(request), [pending](const RequestEvent& event) {
        if (event.result) pending->Finish(*event.result);
        return true;
      });
    }));
    return pending;
  }

  // None where it is not over.
  std::optional<RequestResult> Poll() {
    process_.Require();
    const std::lock_guard lock(mutex_);
    return result_;
  }
  void Cancel() const {
    process_.Require();
    if (const auto opened = opened_.lock()) opened->service->Cancel(id_);
  }

 private:
  void Finish(RequestResult result) {
    {
      const std::lock_guard lock(mutex_);
      result_ = std::move(result);
    }
    waker_->Notify(key_);
  }

  OwnProcess process_;
  std::weak_ptr<OpenedEngine> opened_;
  std::shared_ptr<Waker> waker_;
  int64_t key_;
  RequestId id_ = 0;
  std::mutex mutex_;
  std::optional<RequestResult> result_;  // guarded by mutex_
};

// A request whose events are wanted one by one. One that nobody reads waits, and takes no more memory.
class Stream {
 public:
  explicit Stream(std::unique_ptr<RequestStream> stream) : stream_(std::move(stream)) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    // In a fork its locks may be held by threads that are not there.
    if (!process_.is_here()) static_cast<void>(stream_.release());
  }

  static std::unique_ptr<Stream> Submit(const std::shared_ptr<OpenedEngine>& opened, Request request,
                                        const std::shared_ptr<Waker>& waker, int64_t key) {
    return std::make_unique<Stream>(Value(WithoutGil([&] {
      if (waker == nullptr) return opened->service->Submit(std::move(request));
      return opened->service->SubmitPolled(std::move(request), [waker, key] { waker->Notify(key); });
    })));
  }

  // Waits. None once the final event was taken.
  std::optional<RequestEvent> Next() {
    process_.Require();
    while (true) {
      std::optional<RequestEvent> event = WithoutGil(
          [&] { return stream_->Next(RequestStream::Clock::now() + std::chrono::milliseconds(kSignalIntervalMs)); });
      if (event || stream_->is_over()) return event;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  std::optional<RequestEvent> Poll() {
    process_.Require();
    return stream_->Poll();
  }
  void Cancel() {
    process_.Require();
    stream_->Cancel();
  }

 private:
  OwnProcess process_;
  std::unique_ptr<RequestStream> stream_;
};

// As Submit does.
Status CheckNew(const OpenedEngine& opened, const Request& request) {
  HW_RETURN_IF_ERROR(ValidateRequest(request, opened.engine().config().vocab_size));
  if (!opened.checks) return Status::Ok();
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  return opened.checks->Check(
      {.plan = request.plan, .prompt_tokens = prompt_tokens, .max_tokens = prompt_tokens + request.max_new_tokens},
      opened.checks->step_tokens());
}

// What Submit would say of a request for a new text, without one.
void CheckRequest(const BoundEngine& engine, const Request& request) {
  const auto opened = engine.Get();
  Check(WithoutGil([&] { return CheckNew(*opened, request); }));
}

// (id, logprob) of the chosen token, and of the most likely ones.
using Logprobs = std::tuple<int32_t, float, std::vector<std::pair<int32_t, float>>>;

Logprobs LogprobsTuple(const TokenLogprobs& each) {
  std::vector<std::pair<int32_t, float>> top;
  top.reserve(each.top.size());
  for (const TokenLogprob& token : each.top) top.emplace_back(token.id, token.logprob);
  return {each.chosen.id, each.chosen.logprob, std::move(top)};
}

Row MetricsDict(const RequestMetrics& metrics) {
  nb::dict row;
  row["prompt_tokens"] = metrics.prompt_tokens;
  row["new_tokens"] = metrics.new_tokens;
  row["num_preemptions"] = metrics.num_preemptions;
  row["prefill_seconds"] = metrics.prefill_seconds;
  row["decode_seconds"] = metrics.decode_seconds;
  row["kv_bytes"] = metrics.kv_bytes;
  row["kv_bytes_full"] = metrics.kv_bytes_full;
  row["kv_bytes_bounded"] = metrics.kv_bytes_bounded;
  row["kv_peak_bytes"] = metrics.kv_peak_bytes;
  return row;
}

// Text is UTF-8 already: the decoder of tokens sees to it.
nb::str TextOf(const std::string& text) {
  return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

void BindRequest(nb::module_& module) {
  nb::class_<SamplingOptions>(module, "SamplingOptions")
      .def_rw("temperature", &SamplingOptions::temperature)
      .def_rw("top_k", &SamplingOptions::top_k)
      .def_rw("top_p", &SamplingOptions::top_p)
      .def_rw("min_p", &SamplingOptions::min_p)
      .def_rw("repetition_penalty", &SamplingOptions::repetition_penalty)
      .def_rw("frequency_penalty", &SamplingOptions::frequency_penalty)
      .def_rw("presence_penalty", &SamplingOptions::presence_penalty)
      .def_rw("seed", &SamplingOptions::seed)
      .def(
          "set_logit_bias",
          [](SamplingOptions& sampling, const std::vector<std::pair<int32_t, float>>& biases) {
            sampling.logit_bias.clear();
            for (const auto& [id, bias] : biases) sampling.logit_bias.push_back({.id = id, .bias = bias});
          },
          "biases"_a);
  nb::class_<Request>(module, "Request")
      .def(nb::init<>())
      .def_rw("prompt", &Request::prompt)
      .def_ro("sampling", &Request::sampling)
      .def_rw("max_new_tokens", &Request::max_new_tokens)
      .def_rw("stop", &Request::stop)
      .def_rw("stop_tokens", &Request::stop_tokens)
      .def_rw("priority", &Request::priority)
      .def_rw("client", &Request::client)
      .def_rw("logprobs", &Request::logprobs, nb::arg().none())
      .def(
          "set_plan", [](Request& request, const BoundPlan& plan) { request.plan = plan.plan; }, "plan"_a)
      .def(
          "set_sequence", [](Request& request, const BoundSequence& sequence) { request.sequence = sequence.sequence; },
          "sequence"_a)
      .def(
          "set_constraint",
          [](Request& request, const BoundConstraint& constraint) { request.constraint = constraint.constraint; },
          "constraint"_a)
      .def("ignore_eos", [](Request& request) { request.eos = EosMode::kIgnore; })
      .def("keep_nothing", [](Request& request) { request.output = Request::Output::kStreamOnly; });
}

}  // namespace

void BindRequests(nb::module_& module) {
  module.attr("MAX_SEQUENCE_TOKENS") = kMaxSequenceTokens;
  BindRequest(module);
  nb::class_<RequestResult>(module, "Result")
      .def_prop_ro("finish", [](const RequestResult& result) { return NameOf(result.finish); })
      .def_ro("tokens", &RequestResult::tokens)
      .def_prop_ro("text", [](const RequestResult& result) { return TextOf(result.text); })
      .def_prop_ro("logprobs",
                   [](const RequestResult& result) {
                     std::vector<Logprobs> rows;
                     for (const TokenLogprobs& each : result.logprobs) rows.push_back(LogprobsTuple(each));
                     return rows;
                   })
      .def_prop_ro("metrics", [](const RequestResult& result) { return MetricsDict(result.metrics); })
      .def("check", [](const RequestResult& result) { Check(result.status); });
  nb::class_<RequestEvent>(module, "Event")
      .def_ro("token", &RequestEvent::token)
      .def_prop_ro("text", [](const RequestEvent& event) { return TextOf(event.text); })
      .def_prop_ro("logprobs",
                   [](const RequestEvent& event) -> std::optional<Logprobs> {
                     if (!event.logprobs) return std::nullopt;
                     return LogprobsTuple(*event.logprobs);
                   })
      .def_ro("result", &RequestEvent::result);
  nb::class_<BoundWaker>(module, "Waker")
      .def(nb::init<>())
      .def_prop_ro("fd", [](const BoundWaker& bound) { return bound.waker->fd(); })
      .def("take", [](const BoundWaker& bound) { return bound.waker->Take(); })
      .def("wait", [](const BoundWaker& bound) {
        // Signals that come meanwhile are looked for when it returns.
        WithoutGil([&] { bound.waker->Wait(kSignalIntervalMs); });
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        return bound.waker->Take();
      });
  nb::class_<Pending>(module, "Pending").def("poll", &Pending::Poll).def("cancel", &Pending::Cancel);
  nb::class_<Stream>(module, "Stream")
      .def("next", &Stream::Next)
      .def("poll", &Stream::Poll)
      .def("cancel", &Stream::Cancel);
  module.def("check", CheckRequest, "engine"_a, "request"_a);
  module.def(
      "submit",
      [](const BoundEngine& engine, const Request& request, const BoundWaker& bound, int64_t key) {
        return Pending::Submit(engine.Get(), request, bound.waker, key);
      },
      "engine"_a, "request"_a, "waker"_a, "key"_a);
  module.def(
      "stream",
      [](const BoundEngine& engine, const Request& request, const BoundWaker* bound, int64_t key) {
        return Stream::Submit(engine.Get(), request, bound == nullptr ? nullptr : bound->waker, key);
      },
      "engine"_a, "request"_a, "waker"_a.none(), "key"_a);
}

}  // namespace headwise::python
