// Writers of the block formats whose scales are themselves quantised, so that rounding each number to the nearest is
// not best: they search for codes of small squared error. Private to tensor/blocks.cc.
#ifndef HEADWISE_TENSOR_BLOCKS_SEARCH_H_
#define HEADWISE_TENSOR_BLOCKS_SEARCH_H_

#include <cstdint>

namespace headwise {

// One block each. `values` [256] f32, finite; `block` [BlockBytes] is written whole.
void QuantizeQ4K(const float* values, uint8_t* block);
void QuantizeQ6K(const float* values, uint8_t* block);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_BLOCKS_SEARCH_H_
