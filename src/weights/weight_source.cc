#include "weights/weight_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sha256.h"

namespace headwise {

Result<ConstTensorView> WeightSource::Get(std::string_view name, const Shape& shape) const {
  HW_ASSIGN_OR_RETURN(const ConstTensorView view, Get(name));
  const bool may_have_blocks = shape.rank() == 2 || shape.rank() == 3;
  const bool is_fitting = IsPlainFloat(view.dtype) || (may_have_blocks && IsBlockFormat(view.dtype));
  if (view.shape != shape || !is_fitting) {
    return Status::InvalidInput(fmt::format("{}: tensor \"{}\" is {} {}, expected {} of f32, f16{}", origin(), name,
                                            NameOf(view.dtype), view.shape.ToString(), shape.ToString(),
                                            may_have_blocks ? ", bf16 or a block format" : " or bf16"));
  }
  return view;
}

std::string SourceHash(const WeightSource& source) {
  if (const std::string recorded = source.RecordedHash(); !recorded.empty()) return recorded;
  constexpr int64_t kHashedBytes = 4096;
  Sha256 hash;
  for (const std::string& name : source.Names()) {
    const auto view = source.Get(name);
    if (!view.ok()) continue;
    hash.Update(fmt::format("{} {}\n", name, view->shape.ToString()));
    hash.Update(view->data, static_cast<size_t>(std::min(kHashedBytes, view->size_bytes())));
  }
  return hash.Hex();
}

}  // namespace headwise
