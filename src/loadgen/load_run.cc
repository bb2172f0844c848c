#include "loadgen/load_run.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "loadgen/completion_stream.h"

namespace headwise {
namespace {

namespace asio = boost::asio;
using Clock = HttpCallListener::Clock;
using ErrorCode = boost::system::error_code;

// Of an answer that is no stream; enough for its message.
constexpr size_t kMaxErrorBytes = size_t{64} << 10;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// One request while it is under way.
class LoadRequest : public HttpCallListener {
 public:
  using OnRequestEnd = std::function<void(LoadRequest&)>;

  LoadRequest(LoadRecord record, Clock::time_point begin, OnRequestEnd on_end)
      : record_(std::move(record)), begin_(begin), on_end_(std::move(on_end)) {}

  void Start(HttpClient& client, const HttpCallRequest& request) { call_ = client.Start(request, *this); }
  LoadRecord& record() { return record_; }

  void OnConnected(Clock::time_point now) override { record_.connected = Seconds(begin_, now); }
  void OnHead(int status, std::string_view content_type) override {
    record_.status = status;
    is_stream_ = status == 200 && content_type.starts_with("text/event-stream");
    if (!is_stream_) content_type_ = content_type;
  }
  bool OnBody(std::string_view bytes, Clock::time_point now) override {
    if (is_stream_) return stream_.Feed(bytes, Seconds(begin_, now));
    other_body_ += bytes.substr(0, kMaxErrorBytes - std::min(other_body_.size(), kMaxErrorBytes));
    return true;
  }
  void OnEnd(const HttpCallEnd& end, Clock::time_point now) override {
    record_.end = Seconds(begin_, now);
    Judge(end);
    record_.pieces = stream_.piece_times();
    if (const auto& usage = stream_.usage()) {
      record_.is_counted = true;
      record_.prompt_tokens = usage->prompt_tokens;
      record_.cached_tokens = usage->cached_tokens;
      record_.output_tokens = usage->completion_tokens;
    } else {
      record_.output_tokens = static_cast<int64_t>(record_.pieces.size());
    }
    on_end_(*this);
  }

 private:
  void Fail(std::string kind, std::string message) {
    record_.failure = std::move(kind);
    record_.message = std::move(message);
  }
  void Judge(const HttpCallEnd& end) {
    if (record_.status != 0 && record_.status != 200) {
      return Fail(fmt::format("http_{}", record_.status), ErrorMessageOf(other_body_));
    }
    if (const auto& failure = stream_.failure()) return Fail(failure->kind, failure->message);
    // An answer that has said that it is over is whole, however its connection ends.
    if (stream_.is_done() && !stream_.piece_times().empty()) return;
    if (!end.failure.empty() && end.failure != "stopped") return Fail(end.failure, end.message);
    if (!is_stream_) {
      return Fail("protocol", fmt::format("an answer of type \"{}\", expected text/event-stream", content_type_));
    }
    if (stream_.piece_times().empty()) return Fail("incomplete", "a stream without a token");
    // Not every server says [DONE], but all say why a text ended.
    if (!stream_.is_finished()) Fail("incomplete", "the stream ended before the text did");
  }

  LoadRecord record_;
  Clock::time_point begin_;
  OnRequestEnd on_end_;
  bool is_stream_ = false;
  std::string content_type_;
  CompletionStream stream_;
  std::string other_body_;
  std::unique_ptr<HttpClient::Call> call_;
};

class LoadRun {
 public:
  LoadRun(HttpClient& client, LoadSchedule schedule, const LoadRunOptions& options)
      : client_(client), schedule_(std::move(schedule)), options_(options), timer_(client.io()), stop_(client.io()) {}

  LoadRunResult Run() {
    WatchStop();
    begin_ = Clock::now();
    client_.io().restart();
    Pump();
    client_.io().run();
    return std::move(result_);
  }

 private:
  void WatchStop() {
    if (options_.stop_fd < 0) return;
    const int copy = ::fcntl(options_.stop_fd, F_DUPFD_CLOEXEC, 0);  // the descriptor's owner closes his own
    if (copy < 0) return;
    stop_.assign(copy);
    stop_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const ErrorCode& error) {
      if (error) return;
      result_.is_stopped = true;
      requests_.clear();
      Finish();
    });
  }

  void Finish() {
    ErrorCode ignored;
    timer_.cancel(ignored);
    stop_.close(ignored);
  }

  // Begins what is due, and waits for what comes next.
  void Pump() {
    if (result_.is_stopped) return;
    while (const auto request = schedule_.TakeDue(Seconds(begin_, Clock::now()))) Begin(*request);
    if (schedule_.is_done()) return Finish();
    const auto next = schedule_.NextTime();
    if (!next) return;
    timer_.expires_at(begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*next)));
    timer_.async_wait([this](const ErrorCode& error) {
      if (!error) Pump();
    });
  }

  void Begin(size_t number) {
    const auto index = static_cast<int64_t>(number);
    const LoadPrompt prompt = options_.prompt(index);
    Json body = options_.body;
    body["prompt"] = prompt.prompt;
    body["max_tokens"] = prompt.output_tokens;
    body["stream"] = true;
    HttpCallRequest request = {.method = "POST", .path = "/v1/completions"};
    request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    LoadRecord record = {.request = index, .arrival = schedule_.arrival(number)};
    record.prompt_tokens = prompt.num_ids;
    record.wanted_tokens = prompt.output_tokens;
    record.start = Seconds(begin_, Clock::now());  // with the request ready: what comes is the server's
    auto& held = requests_[number];
    held = std::make_unique<LoadRequest>(std::move(record), begin_,
                                         [this, number](LoadRequest& ended) { OnEnd(number, ended); });
    held->Start(client_, request);
  }

  void OnEnd(size_t number, LoadRequest& ended) {
    result_.records.push_back(std::move(ended.record()));
    schedule_.OnEnd();
    if (options_.on_record) options_.on_record(result_.records);
    // The request is within a call of its own.
    asio::post(client_.io(), [this, number] {
      requests_.erase(number);
      Pump();
    });
  }

  HttpClient& client_;
  LoadSchedule schedule_;
  const LoadRunOptions& options_;
  asio::steady_timer timer_;
  asio::posix::stream_descriptor stop_;
  Clock::time_point begin_;
  LoadRunResult result_;
  std::unordered_map<size_t, std::unique_ptr<LoadRequest>> requests_;
};

}  // namespace

LoadRunResult RunLoad(HttpClient& client, LoadSchedule schedule, const LoadRunOptions& options) {
  return LoadRun(client, std::move(schedule), options).Run();
}

}  // namespace headwise
