// A Request: reads a prompt, then draws a token after each step until something ends the text.
#ifndef HEADWISE_ENGINE_GENERATION_H_
#define HEADWISE_ENGINE_GENERATION_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request_text.h"
#include "engine/running_request.h"
#include "engine/sampler.h"
#include "engine/token_guide.h"

namespace headwise {

class Generation : public RunningRequest {
 public:
  // Whether its whole text is kept, so that it can be read again.
  enum class KeepsText { kNo, kYes };
  // Borrows the tokenizer, which may be null, and the model's ids that end a text.
  Generation(RequestId id, SequenceNeed need, Request request, const Tokenizer* tokenizer,
             const std::vector<int32_t>& eos_ids, std::shared_ptr<RequestObserver> observer,
             KeepsText keeps_text = KeepsText::kNo);

  bool Grows() const override { return true; }
  StepWish Wish() const override;
  void AddWanted(int64_t num_new, std::vector<int32_t>& wanted) const override;
  bool Draws() const override { return !guide_; }
  const TokenDraw* NextDraw() override;
  Next NextStep() const override;
  Verdict TakeRows(int64_t num_new, const RequestRows& rows) override;
  std::string TakeRest(FinishReason& finish) override;
  void ShowRest(const std::string& rest) override;

 private:
  Verdict DrawToken(std::span<float> logits);
  Verdict TakeToken(int32_t id, std::optional<TokenLogprobs> logprobs);
  bool EndsText(int32_t id) const;
  void CutTokens();

  Request request_;
  const Tokenizer* tokenizer_;
  const std::vector<int32_t>* eos_ids_;
  Sampler sampler_;
  TokenDraw draw_;
  std::optional<TokenGuide> guide_;  // where there is a constraint
  std::vector<float> raw_logits_;    // as they were before the sampler changed them, where log-probabilities are wanted
  RequestText text_;
  Clock::time_point first_token_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_GENERATION_H_
