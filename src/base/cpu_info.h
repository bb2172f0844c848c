// What the processor is and can do: decides which build of the kernels runs and how many threads there are.
#ifndef HEADWISE_BASE_CPU_INFO_H_
#define HEADWISE_BASE_CPU_INFO_H_

#include <headwise/status.h>

#include <cstdint>
#include <string>

namespace headwise {

// Instruction sets that kernels are built for. True only if processor and operating system both support it.
struct CpuFeatures {
  bool avx2 = false;         // with FMA, F16C and BMI2: what the AVX2 kernels are compiled for
  bool avx512 = false;       // F, CD, BW, DQ, VL
  bool avx512_vnni = false;  // int8 dot products
  bool avx512_bf16 = false;  // bf16 dot products
  bool amx = false;          // tile registers, products of bf16 and of bytes; a process has to ask: AskForTiles
};

CpuFeatures DetectCpuFeatures();

// Asks the kernel to let this process use tile registers, which make what it saves of a thread 8 KiB larger: all its
// threads, now and later, and processes that it forks. Whether it may. Requires: CpuFeatures::amx.
bool AskForTiles();

// Cores that this process may run on: what taskset or a container's cpuset leave of the machine. At least 1.
int NumUsableCores();

// Of a wish for threads, 0 being one per core.
Status CheckNumThreads(int num_threads);

// Of the largest cache that the first core reads from; 32 MiB where the system does not tell.
int64_t LastLevelCacheBytes();

// Of the whole machine; 0 where the system does not tell.
int64_t PhysicalMemoryBytes();

// "AMD EPYC 9B14", or "unknown".
std::string CpuModelName();

}  // namespace headwise

#endif  // HEADWISE_BASE_CPU_INFO_H_
