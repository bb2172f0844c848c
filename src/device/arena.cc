#include "device/arena.h"

#include "base/check.h"

namespace headwise {

Status Arena::Reset(size_t bytes) {
  used_ = 0;
  if (block_.size_bytes() >= bytes && block_.size_bytes() <= 8 * bytes + (1u << 20)) return Status::Ok();
  block_ = DeviceBuffer();  // free first: the old and the new block need not both fit
  HW_ASSIGN_OR_RETURN(block_, DeviceBuffer::Make(*device_, bytes));
  return Status::Ok();
}

TensorView Arena::New(const Shape& shape) {
  const size_t bytes = BytesFor(shape);
  HW_CHECK(used_ + bytes <= block_.size_bytes(), "arena {} + {} of {}", used_, bytes, block_.size_bytes());
  TensorView view{.data = block_.data() + used_, .dtype = DType::kF32, .shape = shape};
  used_ += bytes;
  return view;
}

}  // namespace headwise
