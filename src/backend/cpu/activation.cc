#include "backend/cpu/activation.h"

namespace headwise::cpu {

void Activation::Row(const float* gate, float* x, int64_t n) const {
  switch (kind) {
    case ActivateArgs::Kind::kGatedSilu:
      return kernels.gated_silu(gate, x, n);
    case ActivateArgs::Kind::kGatedGeluTanh:
      return kernels.gated_gelu_tanh(gate, x, n);
    case ActivateArgs::Kind::kGatedSiluClamped:
      return kernels.gated_silu_clamped(gate, x, n, kClampedSiluLimit, kClampedSiluSlope);
    case ActivateArgs::Kind::kGelu:
      return kernels.gelu(x, n);
    case ActivateArgs::Kind::kGeluTanh:
      return kernels.gelu_tanh(x, n);
  }
}

}  // namespace headwise::cpu
