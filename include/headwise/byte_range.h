#ifndef HEADWISE_BYTE_RANGE_H_
#define HEADWISE_BYTE_RANGE_H_

#include <cstddef>

namespace headwise {

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin;
  size_t end;
  bool operator==(const ByteRange&) const = default;
};

}  // namespace headwise

#endif  // HEADWISE_BYTE_RANGE_H_
