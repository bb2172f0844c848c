// A KV page as the reference backend lays it out: K [P, D], then V [P, D], each P D numbers in order.
//   f32, f16, bf16  the numbers themselves
//   q8              int8 codes, then the scales of the 2 P rows, f16
//   q4              codes of 4 bits, two to a byte, the first in the low half; then pairs of scale and low, f16: of the
//   D
//                   dimensions of keys, of the [P, ceil(D / 32)] groups of values
#ifndef HEADWISE_BACKEND_REF_KV_PAGE_H_
#define HEADWISE_BACKEND_REF_KV_PAGE_H_

#include <cstddef>
#include <cstdint>

#include "backend/ops.h"

namespace headwise::ref {

// Thread-safety: none. Borrows its memory.
class KvPage {
 public:
  KvPage(std::byte* data, const KvLayout& layout) : data_(data), layout_(layout) {}

  float Key(int64_t slot, int64_t d) const { return Load(slot, d); }
  float Value(int64_t slot, int64_t d) const { return Load(layout_.page_tokens + slot, d); }
  // Key and value of a token, [D] each. Not in q4.
  void Set(int64_t slot, const float* key, const float* value);
  // The token in slot `from_slot` of `from`, which has the same layout, bit for bit. Not in q4.
  void Take(int64_t slot, const KvPage& from, int64_t from_slot);
  // Every token of `from`, which is in q8. Only in q4.
  void Age(const KvPage& from);

 private:
  // Numbers that share a scale and a low: one dimension of all keys, or up to 32 dimensions of a value.
  struct Group {
    int64_t first_row = 0;
    int64_t num_rows = 1;
    int64_t first_dim = 0;
    int64_t num_dims = 1;
  };

  // Rows 0 .. P-1 are keys, P .. 2 P - 1 values.
  float Load(int64_t row, int64_t d) const;
  void Store(int64_t row, const float* x);
  void StoreQ8(int64_t row, const float* x);
  void AgeGroup(const KvPage& from, const Group& group);
  int64_t GroupIndex(int64_t row, int64_t d) const;
  // What follows the codes.
  std::byte* Scales() const;

  std::byte* data_;
  KvLayout layout_;
};

}  // namespace headwise::ref

#endif  // HEADWISE_BACKEND_REF_KV_PAGE_H_
