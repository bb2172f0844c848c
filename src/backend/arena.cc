#include "backend/backend.h"

namespace headwise {

void Arena::Reset(size_t bytes) {
  used_ = 0;
  if (block_.size_bytes() >= bytes && block_.size_bytes() <= 8 * bytes + (1u << 20)) return;
  block_ = DeviceBuffer();  // free first: the old and the new block need not both fit
  block_ = DeviceBuffer(*backend_, bytes);
}

TensorView Arena::New(const Shape& shape) {
  const size_t bytes = BytesFor(shape);
  HW_CHECK(used_ + bytes <= block_.size_bytes(), "arena {} + {} of {}", used_, bytes, block_.size_bytes());
  TensorView view{.data = block_.data() + used_, .dtype = DType::kF32, .shape = shape};
  used_ += bytes;
  return view;
}

}  // namespace headwise
