// A request on its way through the engine, of whatever kind: a sequence, tokens to read into it, and what to do with
// the rows of logits that come out.
#ifndef HEADWISE_ENGINE_RUNNING_REQUEST_H_
#define HEADWISE_ENGINE_RUNNING_REQUEST_H_

#include <headwise/engine.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cancellations.h"
#include "engine/client_shares.h"
#include "engine/prefix_cache.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "tensor/token_draw.h"

namespace headwise {

// Follows one request, on the engine's thread. Of a request with an observer the engine keeps nothing once it is over.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // False leaves the request out of the next step.
  virtual bool HasRoom() = 0;
  // A generated token, the text that can be shown with it, and its log-probabilities if they are wanted.
  virtual void OnToken(int32_t id, std::string text, std::optional<TokenLogprobs> logprobs) = 0;
  // Once, at the end: the text that was held back, and the result.
  virtual void OnFinish(std::string rest, RequestResult result) = 0;
};

// What a request runs on.
struct SequenceNeed {
  SequenceClaim claim;          // of the sequence that was given
  SequenceOptions new_options;  // where none was: what to make
  int64_t step_tokens = 0;      // its longest step
};

// What a step gave to one request: rows of its wanted tokens, in order.
struct RequestRows {
  int64_t num_rows = 0;
  std::span<float> logits;        // [R, V]
  std::span<const float> hidden;  // [R, E]
  // Of a request that draws on the device: where `ids` is not empty, rows above mean nothing (StepOutput).
  std::span<const int32_t> ids;      // [R]
  std::span<const float> logprobs;   // [R, 1 + N]
  std::span<const int32_t> top_ids;  // [R, N]
};

// Whether a request goes on.
struct Verdict {
  FinishReason finish = FinishReason::kRunning;
  Status status;
};

class RunningRequest {
 public:
  using Clock = std::chrono::steady_clock;

  RunningRequest(RequestId id, SequenceNeed need, std::vector<int32_t> ids, std::shared_ptr<RequestObserver> observer)
      : id_(id), need_(std::move(need)), observer_(std::move(observer)), unread_(std::move(ids)) {
    result.metrics.prompt_tokens = static_cast<int64_t>(unread_.size());
  }
  RunningRequest(const RunningRequest&) = delete;
  virtual ~RunningRequest() = default;

  RequestId id() const { return id_; }
  SequenceNeed& need() { return need_; }
  RequestObserver* observer() const { return observer_.get(); }
  bool running() const { return result.finish == FinishReason::kRunning; }
  // Null until it is admitted and once it is over. Without a cache while it has given way to others.
  Sequence* sequence() const { return sequence_.get(); }
  // Made for it, and nobody else's.
  bool has_own_sequence() const { return need_.claim.sequence() == nullptr; }
  // Whom of the two memory is for where there is not enough for both: by priority, then who came first.
  bool GoesBefore(const RunningRequest& other) const {
    return std::pair(priority_, id_) < std::pair(other.priority_, other.id_);
  }
  const std::string& client() const { return client_; }
  // At step number `step` of its engine.
  Turn TurnAt(int64_t step) const {
    return {.priority = priority_,
            .waited_steps = step - arrived_at_step,
            .is_again = result.metrics.num_preemptions > 0,
            .served = share.served(),
            .arrival = id_};
  }

  // Admitted. The token that the sequence's last request sampled is read first; the first `num_reused` of the prompt
  // are in the cache already.
  void Begin(std::shared_ptr<Sequence> sequence, int64_t num_reused);
  // Whether its text grows beyond what it was given to read: it ends at some length up to that of its sequence.
  virtual bool Grows() const { return false; }
  // Whether its text may be read again from the first token, and nobody but the clock notices.
  bool CanReadAgain() const { return has_whole_text_; }
  // All ids of its text. Requires: CanReadAgain().
  const std::vector<int32_t>& whole_text() const { return whole_text_; }
  // Has the whole text to read, on a cache without tokens. Requires: `ids` is whole_text().
  void ReadAgain(std::vector<int32_t> ids) noexcept;
  // What it would read in the next step. Requires: admitted.
  virtual StepWish Wish() const = 0;
  std::span<const int32_t> Unread() const { return std::span(unread_).subspan(num_read_); }
  // Appends which of the next `num_new` tokens' rows are wanted.
  virtual void AddWanted(int64_t num_new, std::vector<int32_t>& wanted) const = 0;
  // Whether of a row's logits it asks for nothing but a token, and its log-probabilities, which a device may draw.
  virtual bool Draws() const { return false; }
  // How its next token is drawn, valid until the next call. Asked for once for each step that wants a row of it.
  // Requires: Draws().
  virtual const TokenDraw* NextDraw() { return nullptr; }
  // What comes behind the step that was just noted, as far as can be said before its rows are there.
  enum class Next {
    kUnknown,
    kOneToken,  // unless that row ends it, the token drawn from the one row that it wanted
    kNothing,   // it ends
  };
  virtual Next NextStep() const { return Next::kUnknown; }
  // A step that reads the next `num_new` tokens is on its way.
  void NoteRead(int64_t num_new);
  // A step is on its way that reads the token that TakeRows will say. Requires: NextStep() is kOneToken.
  void NoteReadAhead() {
    reads_ahead_ = true;
    share.Serve(1);
  }
  // After NoteRead. May call back into the program, which may throw or Take this request.
  virtual Verdict TakeRows(int64_t num_new, const RequestRows& rows) = 0;
  // What of the text was held back; called once, at the end, whose reason it may make another one.
  virtual std::string TakeRest(FinishReason&) { return {}; }
  // The program's callback for text at the end, if it wants that.
  virtual void ShowRest(const std::string&) {}

  void UpdateMetrics();
  // Gives the sequence back.
  void ReleaseSequence();
  // Of a request that is over, with a sequence of its own.
  std::shared_ptr<Sequence> TakeSequence() { return std::move(sequence_); }

  Cancellations::Ticket ticket;
  ClientShares::Ticket share;   // once it is accepted, until it is over
  int64_t arrived_at_step = 0;  // of its engine
  RequestResult result;
  std::unique_ptr<PrefixTrack> prefix;  // where it reuses prefixes
  bool has_rows = false;                // of logits, given in a step before
  // Where not OK: ends the request when the step is over. Noted here because a list of those that fail would take
  // memory when there is none.
  Status failure;

 protected:
  void SetTurn(int64_t priority, std::string client) {
    priority_ = priority;
    client_ = std::move(client);
  }
  bool has_pending_first() const { return has_pending_first_; }
  int64_t num_read() const { return static_cast<int64_t>(num_read_); }
  int64_t num_unread() const { return static_cast<int64_t>(unread_.size() - num_read_); }
  Sequence& text() const { return *sequence_; }
  double SecondsSinceAdmission() const;
  // From here on it can be read again. Requires: not admitted, on a sequence of its own.
  void KeepWholeText();
  // The text goes on with `id`, which is read next, or is being read.
  void ReadNext(int32_t id);

 private:
  RequestId id_;
  int64_t priority_ = 0;
  std::string client_;
  SequenceNeed need_;
  std::shared_ptr<RequestObserver> observer_;
  std::shared_ptr<Sequence> sequence_;
  std::vector<int32_t> unread_;      // the token pending on the sequence, then what was asked; or the last sample
  size_t num_read_ = 0;              // of `unread_`
  std::vector<int32_t> whole_text_;  // where it can be read again
  bool has_whole_text_ = false;
  bool has_pending_first_ = false;
  bool reads_ahead_ = false;  // a step is on its way that reads what ReadNext will say
  Clock::time_point admitted_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_RUNNING_REQUEST_H_
