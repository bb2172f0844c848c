// What the drivers of the cpu backend may choose by how many rows there are.
#ifndef HEADWISE_BACKEND_CPU_ROW_SUMS_H_
#define HEADWISE_BACKEND_CPU_ROW_SUMS_H_

#include <cstdint>

namespace headwise::cpu {

// kFastest: whatever is fastest for as many rows as there are. kAlike: the same sums in the same order for any number,
// so that a row's bits do not depend on what else is there (CpuOptions::batch_invariant).
enum class RowSums : uint8_t { kFastest, kAlike };

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_ROW_SUMS_H_
