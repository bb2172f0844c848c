// Kernels for NVIDIA GPUs: the backend "cuda". The driver is looked for when one is made, so a program that has it in
// runs on machines without.
#ifndef HEADWISE_BACKEND_CUDA_CUDA_BACKEND_H_
#define HEADWISE_BACKEND_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "backend/backend.h"

namespace headwise {

// kUnsupported where no GPU is, or a driver that is too old.
Result<std::unique_ptr<Backend>> MakeCudaBackend();

}  // namespace headwise

#endif  // HEADWISE_BACKEND_CUDA_CUDA_BACKEND_H_
