// On which device tests compute: HEADWISE_TEST_DEVICE in the environment.
//   far   engines compute where the host cannot read (support/far_backend.h)
//   cuda  the backend cuda in place of all others, and of the default
#ifndef HEADWISE_TESTS_SUPPORT_TEST_DEVICE_H_
#define HEADWISE_TESTS_SUPPORT_TEST_DEVICE_H_

#include <cstdlib>
#include <string_view>

namespace headwise {

inline bool IsTestDevice(std::string_view name) {
  const char* device = std::getenv("HEADWISE_TEST_DEVICE");
  return device != nullptr && device == name;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TEST_DEVICE_H_
