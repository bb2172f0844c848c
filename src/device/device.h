// Where tensors live and operations run: memory that may be refused, and one queue on which copies and operations are
// done in the order in which they were put there. What is above counts on nothing being done before Wait.
#ifndef HEADWISE_DEVICE_DEVICE_H_
#define HEADWISE_DEVICE_DEVICE_H_

#include <headwise/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace headwise {

// Thread-safety: one thread at a time.
class Device {
 public:
  virtual ~Device() = default;

  // Zero-filled, aligned for every operation, at least to 64 bytes. An address of the device: the host must not
  // dereference it. kOutOfMemory when the system has no more; null for 0 bytes.
  virtual Result<std::byte*> Allocate(size_t bytes) = 0;
  // Once everything that is on the queue is done. Large blocks go back to the system, so that resident memory follows
  // the cache.
  virtual void Free(std::byte* memory, size_t bytes) = 0;

  // `host` may be reused on return.
  virtual void CopyFromHost(void* to, const void* host, size_t bytes) = 0;
  // `host` is filled once Wait has returned.
  virtual void CopyToHost(void* host, const void* from, size_t bytes) = 0;
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;  // both in the device's memory

  // What goes along with operations, with no place of its own on the queue, which costs a device as much as a kernel.
  static constexpr size_t kMaxLent = size_t{256} << 10;
  // Host data as operations that are put next may read it, until Wait or Mark. `host` must stay as long where that is
  // what is given back. Null where there is none, which CopyFromHost then brings, and after an error that Wait returns.
  // Requires: at most kMaxLent bytes.
  virtual const void* Lend(const void* /*host*/, size_t /*bytes*/) { return nullptr; }
  // Memory that an operation put next may write in place of `host`, which is filled from it as by CopyToHost. Null as
  // above. Requires: all of it is written, or is not looked at.
  virtual void* Arriving(void* /*host*/, size_t /*bytes*/) { return nullptr; }

  // Host memory as operations may read it where it is, so that nothing need be copied; null where they cannot.
  virtual const void* DeviceView(const void* /*host*/) { return nullptr; }
  // The device's memory as the host may read and write it once Wait has returned, so that nothing need be copied; null
  // where it cannot.
  virtual void* HostView(void* /*memory*/) { return nullptr; }
  // Whether HostView is never null.
  virtual bool IsHostMemory() const { return false; }

  // Until the queue is empty. An error is the first of what was done since the last Wait.
  virtual Status Wait() = 0;

  // A place on the queue: behind what was put there so far, ahead of what comes. So a step can be put there while the
  // one before it runs. May wait for what is ahead of the mark before it; of more than two that nobody has waited for
  // the first is forgotten.
  virtual void Mark() {}
  // Until all ahead of the oldest mark is done that nobody has waited for; of none, as Wait. Copies to the host that
  // were ahead of it are there then. An error may be one of what was put on the queue behind it.
  virtual Status WaitForMark() { return Wait(); }

  // ---- for benches ----

  // Seconds from when the device begins what `put` puts on the queue until it is done. Replays: `put` is called three
  // times, should put the same each time, and what the host does in it is not counted.
  virtual Result<double> TimeOf(const std::function<void()>& put);
  virtual bool Replays() const { return false; }
  // That the calling thread has spent in Wait and WaitForMark, from the beginning on; 0 where nothing is waited for.
  virtual double SecondsWaited() const { return 0; }
  // Of the largest cache between the device's memory and what computes.
  virtual int64_t CacheBytes() const;
  // All of its memory; 0 where nobody tells.
  virtual int64_t MemoryBytes() const;
};

// The memory of this process; its queue is the calling thread: everything is done on return.
class HostDevice final : public Device {
 public:
  Result<std::byte*> Allocate(size_t bytes) override;
  void Free(std::byte* memory, size_t bytes) override;
  void CopyFromHost(void* to, const void* host, size_t bytes) override { Copy(to, host, bytes); }
  void CopyToHost(void* host, const void* from, size_t bytes) override { Copy(host, from, bytes); }
  void Copy(void* to, const void* from, size_t bytes) override;
  const void* Lend(const void* host, size_t /*bytes*/) override { return host; }
  void* Arriving(void* host, size_t /*bytes*/) override { return host; }
  const void* DeviceView(const void* host) override { return host; }
  void* HostView(void* memory) override { return memory; }
  bool IsHostMemory() const override { return true; }
  Status Wait() override { return Status::Ok(); }
};

// Memory of a device that frees itself. Its address stays. Move-only; the device must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static Result<DeviceBuffer> Make(Device& device, size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) device_->Free(data_, bytes_);
  }

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  size_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace headwise

#endif  // HEADWISE_DEVICE_DEVICE_H_
