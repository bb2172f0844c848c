// What a machine can do at most, measured: how fast its memory is read and how many operations its registers do. Clouds
// hand out different machines on different days, so a speed means something only as a share of these, taken in the same
// run on the same threads.
#ifndef HEADWISE_BACKEND_CEILINGS_H_
#define HEADWISE_BACKEND_CEILINGS_H_

#include <string>

#include "backend/ops.h"

namespace headwise {

struct Ceilings {
  std::string processor;        // "AMD EPYC 9B14", "NVIDIA H200"
  std::string isa;              // "avx512", "cuda"
  int num_threads = 0;          // of a CPU
  int num_multiprocessors = 0;  // of a GPU
  double read_bytes_per_second = 0;
  double f32_flops = 0;       // operations per second; a multiply-add is two
  double bf16_dot_flops = 0;  // the f32 figure where there is no bf16 dot product
  bool has_bf16_dot = false;
  double int8_dot_flops = 0;  // the f32 figure where there is no int8 dot product
  bool has_int8_dot = false;
  // Of tile registers; 0 without them. Where there are some, bf16_dot_flops is theirs too.
  double int8_tile_flops = 0;
  double fp8_flops = 0;  // 0 where there are no products in FP8

  // What products of many rows in `compute` can reach: tile registers take block formats as bf16, or bytes in w8a8.
  double flops(Compute compute) const {
    if (compute == Compute::kF32) return f32_flops;
    if (compute == Compute::kFp8) return fp8_flops;
    if (compute == Compute::kW8A8) return int8_tile_flops;
    return compute == Compute::kBF16 || int8_tile_flops > 0 ? bf16_dot_flops : int8_dot_flops;
  }
};

}  // namespace headwise

#endif  // HEADWISE_BACKEND_CEILINGS_H_
