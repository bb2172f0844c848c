// Constraints of few words, for tests of who asks them.
#ifndef HEADWISE_TESTS_SUPPORT_FAKE_CONSTRAINT_H_
#define HEADWISE_TESTS_SUPPORT_FAKE_CONSTRAINT_H_

#include <headwise/token_constraint.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace headwise {

// After n tokens: which ids may come, and whether the text may end.
struct FakeStep {
  std::vector<int32_t> ids;
  bool may_end = false;
};

class FakeConstraint : public TokenConstraint {
 public:
  using Rule = std::function<FakeStep(size_t num_tokens)>;
  FakeConstraint(int64_t vocab_size, Rule rule) : vocab_size_(vocab_size), rule_(std::move(rule)) {}

  int64_t vocab_size() const override { return vocab_size_; }
  Result<std::unique_ptr<ConstraintState>> Begin() const override {
    return std::unique_ptr<ConstraintState>(std::make_unique<State>(rule_));
  }

 private:
  class State : public ConstraintState {
   public:
    explicit State(Rule rule) : rule_(std::move(rule)) {}
    Result<bool> FillMask(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0);
      const FakeStep step = rule_(num_tokens_);
      for (const int32_t id : step.ids) mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
      return step.may_end;
    }
    Status Accept(int32_t) override {
      ++num_tokens_;
      return Status::Ok();
    }

   private:
    Rule rule_;
    size_t num_tokens_ = 0;
  };

  int64_t vocab_size_;
  Rule rule_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_FAKE_CONSTRAINT_H_
