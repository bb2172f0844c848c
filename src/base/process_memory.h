// Resident memory of this process, as the system counts it.
#ifndef HEADWISE_BASE_PROCESS_MEMORY_H_
#define HEADWISE_BASE_PROCESS_MEMORY_H_

#include <cstdint>

namespace headwise {

struct ProcessMemory {
  int64_t resident_bytes = 0;       // now; mapped files count where their pages are in memory
  int64_t resident_anon_bytes = 0;  // of these, not backed by a file: caches, activations, the heap
  int64_t peak_resident_bytes = 0;
};

// Zeros where the system does not tell.
ProcessMemory ReadProcessMemory();

// What programs may still take before the system has to swap: of the machine, or of the control group that this process
// is in where that allows less. 0 where the system does not tell.
int64_t AvailableMemoryBytes();

// How many bytes of [begin, begin + bytes) lie on pages that are in memory: of a mapped file also those that the system
// keeps and nobody has touched. All of them where the system does not tell.
int64_t ResidentBytes(const void* begin, int64_t bytes);

// Makes the peak begin again at what is resident now; nothing where the system cannot.
void ResetPeakResident();

// Gives back to the system what was freed and the heaps of threads keep for later, which after one large piece of work
// may be all of it once for every thread. Takes milliseconds; nothing where the C library cannot.
void ReturnFreeMemory();

}  // namespace headwise

#endif  // HEADWISE_BASE_PROCESS_MEMORY_H_
