// The reference backend: plain loops on one thread, sums in double. Slow and obvious; it defines what every other
// backend must compute.
#ifndef HEADWISE_BACKEND_REF_REF_BACKEND_H_
#define HEADWISE_BACKEND_REF_REF_BACKEND_H_

#include <memory>

#include "backend/backend.h"

namespace headwise {

std::unique_ptr<Backend> MakeRefBackend();

}  // namespace headwise

#endif  // HEADWISE_BACKEND_REF_REF_BACKEND_H_
