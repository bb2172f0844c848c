// One seed out of several numbers, so that every case has a generator of its own and none depends on how many came
// before it.
#ifndef HEADWISE_BASE_MIX_SEED_H_
#define HEADWISE_BASE_MIX_SEED_H_

#include <cstdint>

namespace headwise {

// The multipliers keep neighbours' generator states far apart.
inline uint64_t MixSeed(uint64_t seed, int64_t a, int64_t b) {
  return (seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(a)) * 0xD1B54A32D192ED03u + static_cast<uint64_t>(b);
}

}  // namespace headwise

#endif  // HEADWISE_BASE_MIX_SEED_H_
