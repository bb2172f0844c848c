// Sizes for people, and as people give them.
#ifndef HEADWISE_BASE_FORMAT_BYTES_H_
#define HEADWISE_BASE_FORMAT_BYTES_H_

#include <headwise/status.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace headwise {

// "67.1 MB": powers of ten, three digits.
std::string FormatBytes(int64_t bytes);

// The other way: "67100000", "67.1M", "67.1 MB" (powers of ten), "64Mi", "64MiB" (powers of two), K to T, in letters of
// either case. The error says what was found and what was expected.
Result<int64_t> ParseBytes(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_BASE_FORMAT_BYTES_H_
