#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "backend/ops.h"
#include "tensor/finite.h"
#include "tensor/logprobs.h"

namespace headwise {

void DrawTokensOnHost(const DrawTokensArgs& args) {
  Validate(args);
  const auto num_ids = static_cast<size_t>(args.logits.shape[1]);
  const size_t num_top = args.top_ids.present() ? static_cast<size_t>(args.top_ids.shape[1]) : 0;
  const std::span<int32_t> ids(static_cast<int32_t*>(args.ids.data), args.draws.size());
  for (size_t row = 0; row < args.draws.size(); ++row) {
    const TokenDraw& draw = args.draws[row];
    const std::span<float> logits(static_cast<float*>(args.logits.data) + row * num_ids, num_ids);
    int32_t& id = ids[row];
    id = -1;
    if (!AllFinite(logits)) continue;
    std::vector<float> edited;
    if (!draw.edits.empty()) {
      edited.assign(logits.begin(), logits.end());
      EditLogits(edited, draw.edits);
    }
    id = DrawToken(draw.edits.empty() ? logits : std::span(edited), draw);
    if (draw.num_top < 0) continue;
    const auto num = static_cast<size_t>(draw.num_top);
    float* const logprobs = static_cast<float*>(args.logprobs.data) + row * (1 + num_top);
    int32_t* const top_ids = num > 0 ? static_cast<int32_t*>(args.top_ids.data) + row * num_top : nullptr;
    LogprobsOf(logits, id, {logprobs, 1 + num}, {top_ids, num});
  }
  if (args.arriving_ids.present()) std::ranges::copy(ids, static_cast<int32_t*>(args.arriving_ids.data));
}

}  // namespace headwise
