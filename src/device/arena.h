// One step's activations: bump allocation in one block of a device's memory, given back all at once.
#ifndef HEADWISE_DEVICE_ARENA_H_
#define HEADWISE_DEVICE_ARENA_H_

#include "device/device.h"
#include "tensor/tensor.h"

namespace headwise {

// Thread-safety: none. The device must outlive it.
class Arena {
 public:
  explicit Arena(Device& device) : device_(&device) {}

  // Everything handed out before is invalid; the block grows to `bytes` if it is smaller, and shrinks back when far
  // larger than needed, so that one long prompt does not hold its memory for ever. Otherwise addresses stay: the same
  // wishes get the same addresses. After an error nothing can be handed out.
  Status Reset(size_t bytes);
  // f32, 64-byte aligned. Requires: the block has room (Reset was given the sum).
  TensorView New(const Shape& shape);
  static size_t BytesFor(const Shape& shape) { return (static_cast<size_t>(shape.num_elements()) * 4 + 63) / 64 * 64; }
  size_t size_bytes() const { return block_.size_bytes(); }

 private:
  Device* device_;
  DeviceBuffer block_;
  size_t used_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_DEVICE_ARENA_H_
