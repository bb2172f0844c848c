// Random numbers that are the same on every machine: the generator is the standard's, the distributions, which the
// standard leaves to each library, are ours.
#ifndef HEADWISE_BASE_RNG_H_
#define HEADWISE_BASE_RNG_H_

#include <cstdint>
#include <random>

#include "base/check.h"

namespace headwise {

class Rng {
 public:
  explicit Rng(uint64_t seed) : generator_(seed) {}

  // Any 64 bits.
  uint64_t Word() { return generator_(); }

  // [0, 1), in steps of 2^-53.
  double Uniform() { return static_cast<double>(Word() >> 11) * 0x1p-53; }

  // [0, n), every value equally likely. Requires: n >= 1.
  uint64_t Below(uint64_t n) {
    HW_CHECK(n >= 1);
    // Words below 2^64 mod n would make some remainders likelier than others.
    const uint64_t first_fair = (0 - n) % n;
    uint64_t word = generator_();
    while (word < first_fair) word = generator_();
    return word % n;
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace headwise

#endif  // HEADWISE_BASE_RNG_H_
