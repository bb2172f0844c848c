// Memory that the system does not grant, on its way to being a Status. Memory that a device hands out is refused by one
// (device/device.h); what containers and scratch buffers take is refused by an exception, which must not leave the
// library: whoever works for a request catches it here, before the request's caller would.
#ifndef HEADWISE_BASE_NO_MEMORY_H_
#define HEADWISE_BASE_NO_MEMORY_H_

#include <headwise/status.h>

#include <cstddef>
#include <new>
#include <vector>

namespace headwise {

// Thrown in place of a plain bad_alloc where it is known how much was wanted, and what for: "scratch memory of ...".
class NoMemory : public std::bad_alloc {
 public:
  NoMemory(size_t bytes, const char* purpose) noexcept;
  const char* what() const noexcept override { return text_; }

 private:
  char text_[160];
};

// kOutOfMemory: what `error` says where it is a NoMemory, otherwise that there was none for `purpose`. Where there is
// not even memory for that, it says "out of memory" and no more.
Status NoMemoryStatus(const std::bad_alloc& error, const char* purpose) noexcept;

// A copy for another who fails for the same reason; a short one where there is no memory for it.
Status CopyOf(const Status& status) noexcept;

// function() -> Status or Result<T>, where memory that cannot be had is a status too.
template <typename Function>
auto CatchNoMemory(const char* purpose, const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc& error) {
    return NoMemoryStatus(error, purpose);
  }
}

// So that push_back does not fail `num_more` times. Grows as push_back would.
template <typename T>
void ReserveMore(std::vector<T>& values, size_t num_more) {
  const size_t needed = values.size() + num_more;
  if (needed > values.capacity()) values.reserve(needed > 2 * values.capacity() ? needed : 2 * values.capacity());
}

}  // namespace headwise

#endif  // HEADWISE_BASE_NO_MEMORY_H_
