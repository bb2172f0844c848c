// A backend: memory and about a dozen operations on it. `ref` is plain loops and the definition of correct; `cpu` is
// SIMD; others follow. Everything above works through this interface and never looks inside a tensor.
#ifndef HEADWISE_BACKEND_BACKEND_H_
#define HEADWISE_BACKEND_BACKEND_H_

#include <headwise/status.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "backend/ops.h"

namespace headwise {

// Thread-safety: one step at a time; memory calls may come from any thread.
class Backend {
 public:
  virtual ~Backend() = default;

  // "ref", "cpu".
  virtual std::string_view name() const = 0;
  // One line for --stats: instruction set, threads.
  virtual std::string Description() const = 0;
  // True where products in `compute` are faster than f32 ones: what `--compute auto` asks.
  virtual bool IsFast(Compute compute) const = 0;

  // ---- memory ----
  // Zero-filled, aligned for every op; null only when the system has no more. Large blocks are given back to the
  // system by Free, so that resident memory follows the cache.
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* memory, size_t bytes) = 0;
  virtual void CopyFromHost(void* to, const void* host, size_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* from, size_t bytes) = 0;
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;  // both in the backend's memory
  // A view of host weights that this backend's ops can read, in an order of its own: rows of it cannot be cut out. A CPU
  // returns plain formats as they are (a mapped file is not copied) and packs block formats; a device copies. Where the
  // result is the view itself, the host memory must outlive the backend's use.
  virtual Result<ConstTensorView> AdoptWeights(const ConstTensorView& host) = 0;

  // ---- ops: Validate(args) first, then compute; out tensors are ready on return ----
  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void Norm(const NormArgs& args) = 0;
  virtual void MatMul(const MatMulArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void Activate(const ActivateArgs& args) = 0;
  virtual void Clamp(const ClampArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;

  // Bytes of one page; 64-byte multiples. The same for every page of a layout.
  virtual size_t PageBytes(const KvLayout& layout) const = 0;
  virtual void AppendKv(const AppendKvArgs& args) = 0;
  virtual void AgeKv(const AgeKvArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void Compensate(const CompensateArgs& args) = 0;
};

// Memory of a backend that frees itself. Move-only.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Backend& backend, size_t bytes) : backend_(&backend), bytes_(bytes), data_(backend.Allocate(bytes)) {
    HW_CHECK(data_ != nullptr || bytes == 0, "no memory for {} bytes", bytes);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) backend_->Free(data_, bytes_);
  }

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  size_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

// One step's activations: bump allocation in one block of the backend's memory, given back all at once.
class Arena {
 public:
  explicit Arena(Backend& backend) : backend_(&backend) {}

  // Everything handed out before is invalid; the block grows to `bytes` if it is smaller, and shrinks back when far
  // larger than needed, so that one long prompt does not hold its memory for ever.
  void Reset(size_t bytes);
  // f32, 64-byte aligned. Requires: the block has room (Reset was given the sum).
  TensorView New(const Shape& shape);
  static size_t BytesFor(const Shape& shape) { return (static_cast<size_t>(shape.num_elements()) * 4 + 63) / 64 * 64; }
  size_t size_bytes() const { return block_.size_bytes(); }

 private:
  Backend* backend_;
  DeviceBuffer block_;
  size_t used_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_BACKEND_BACKEND_H_
