// Sizes for people.
#ifndef HEADWISE_BASE_FORMAT_BYTES_H_
#define HEADWISE_BASE_FORMAT_BYTES_H_

#include <cstdint>
#include <string>

namespace headwise {

// "67.1 MB": powers of ten, three digits.
std::string FormatBytes(int64_t bytes);

}  // namespace headwise

#endif  // HEADWISE_BASE_FORMAT_BYTES_H_
