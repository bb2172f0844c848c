// The parts of the reference backend, one file per op family.
#ifndef HEADWISE_BACKEND_REF_REF_OPS_H_
#define HEADWISE_BACKEND_REF_REF_OPS_H_

#include "backend/ops.h"

namespace headwise::ref {

// dense.cc
void Embed(const EmbedArgs& args);
void Norm(const NormArgs& args);
void MatMul(const MatMulArgs& args);
void Rope(const RopeArgs& args);
void Activate(const ActivateArgs& args);
void Experts(const ExpertsArgs& args);
void GateRows(const GateRowsArgs& args);
void Clamp(const ClampArgs& args);
void SoftCap(const SoftCapArgs& args);
void GatherRows(const GatherRowsArgs& args);

// kv_page.cc
size_t PageBytes(const KvLayout& layout);
void AppendKv(const AppendKvArgs& args);
void CopyPages(const CopyPagesArgs& args);
void AgeKv(const AgeKvArgs& args);

// attention.cc
void Attention(const AttentionArgs& args);
void Compensate(const CompensateArgs& args);

// select.cc
void SelectKv(const SelectKvArgs& args);

inline const float* F32(const ConstTensorView& view) {
  return static_cast<const float*>(view.data);
}
inline float* F32(const TensorView& view) {
  return static_cast<float*>(view.data);
}

}  // namespace headwise::ref

#endif  // HEADWISE_BACKEND_REF_REF_OPS_H_
