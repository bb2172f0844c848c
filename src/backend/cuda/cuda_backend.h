// Kernels for NVIDIA GPUs: the backend "cuda". The driver is looked for when one is made, so a program that has it in
// runs on machines without.
#ifndef HEADWISE_BACKEND_CUDA_CUDA_BACKEND_H_
#define HEADWISE_BACKEND_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "backend/backend.h"
#include "backend/ceilings.h"

namespace headwise {

// kUnsupported where no GPU is, or a driver that is too old.
Result<std::unique_ptr<Backend>> MakeCudaBackend();

// Of the GPU that such a backend works on: what nobody has taken. 0 where the driver does not tell.
int64_t FreeCudaMemoryBytes();

// Of the GPU that such a backend works on. Without cuBLASLt there is no figure for bf16.
Result<Ceilings> MeasureCudaCeilings(Backend& backend);
Result<double> MeasureCudaReadBandwidth(Backend& backend);

}  // namespace headwise

#endif  // HEADWISE_BACKEND_CUDA_CUDA_BACKEND_H_
