// A request's constraint at work: what may be drawn next, and that it was.
#ifndef HEADWISE_ENGINE_TOKEN_GUIDE_H_
#define HEADWISE_ENGINE_TOKEN_GUIDE_H_

#include <headwise/status.h>
#include <headwise/token_constraint.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headwise {

class TokenGuide {
 public:
  // `end_ids`: those that end the text. They are allowed where it may end, whatever the constraint says of them.
  TokenGuide(std::shared_ptr<const TokenConstraint> constraint, std::vector<int32_t> end_ids)
      : constraint_(std::move(constraint)), end_ids_(std::move(end_ids)) {}

  // Leaves of logits [V] those of the ids that may come; the others become -infinity. False where none may, and the
  // text ends here.
  Result<bool> Limit(std::span<float> logits);

  // What was drawn after Limit. An error where it was not allowed: a bias may have forbidden all that was.
  Status Take(int32_t id);

 private:
  bool IsEnd(int32_t id) const;

  std::shared_ptr<const TokenConstraint> constraint_;
  std::vector<int32_t> end_ids_;
  std::unique_ptr<ConstraintState> state_;  // once the first token is to be drawn
  std::vector<uint32_t> mask_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_TOKEN_GUIDE_H_
