// A KV cache full of random values: decoding at a great depth can be timed without the prefill that would lead there.
#ifndef HEADWISE_BENCH_FILL_CACHE_H_
#define HEADWISE_BENCH_FILL_CACHE_H_

#include <cstdint>

#include "engine/sequence.h"

namespace headwise {

// `num_tokens` more tokens in every head, with normally distributed keys and values of deviation 1; heads drop what
// their rules say. The text of the sequence means nothing afterwards. kOutOfMemory where there is no room.
Status FillCache(Sequence& sequence, int64_t num_tokens, uint64_t seed);

}  // namespace headwise

#endif  // HEADWISE_BENCH_FILL_CACHE_H_
