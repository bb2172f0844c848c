#include "backend/ref/ref_backend.h"

#include "backend/ref/ref_ops.h"

namespace headwise {
namespace {

class RefBackend final : public Backend {
 public:
  std::string_view name() const override { return "ref"; }
  std::string Description() const override { return "ref: plain loops, 1 thread"; }
  std::string_view isa() const override { return ""; }
  bool IsFast(Compute /*compute*/) const override { return false; }
  bool is_batch_invariant() const override { return true; }

  Device& device() override { return device_; }
  Result<WeightMatrix> AdoptWeights(const WeightMatrix& host) override { return host; }

  void Embed(const EmbedArgs& args) override { ref::Embed(args); }
  void Norm(const NormArgs& args) override { ref::Norm(args); }
  void MatMul(const MatMulArgs& args) override { ref::MatMul(args); }
  void Rope(const RopeArgs& args) override { ref::Rope(args); }
  void Activate(const ActivateArgs& args) override { ref::Activate(args); }
  void Experts(const ExpertsArgs& args) override { ref::Experts(args); }
  void GateRows(const GateRowsArgs& args) override { ref::GateRows(args); }
  void Clamp(const ClampArgs& args) override { ref::Clamp(args); }
  void SoftCap(const SoftCapArgs& args) override { ref::SoftCap(args); }
  void GatherRows(const GatherRowsArgs& args) override { ref::GatherRows(args); }
  void DrawTokens(const DrawTokensArgs& args) override { DrawTokensOnHost(args); }
  size_t PageBytes(const KvLayout& layout) const override { return ref::PageBytes(layout); }
  void BeginStep(const KvStep& step) override { Validate(step); }
  void CopyPages(const CopyPagesArgs& args) override { ref::CopyPages(args); }
  void AppendKv(const AppendKvArgs& args) override { ref::AppendKv(args); }
  void AgeKv(const AgeKvArgs& args) override { ref::AgeKv(args); }
  void Attention(const AttentionArgs& args) override { ref::Attention(args); }
  void Compensate(const CompensateArgs& args) override { ref::Compensate(args); }
  void SelectKv(const SelectKvArgs& args) override { ref::SelectKv(args); }

 private:
  HostDevice device_;
};

}  // namespace

std::unique_ptr<Backend> MakeRefBackend() {
  return std::make_unique<RefBackend>();
}

}  // namespace headwise
