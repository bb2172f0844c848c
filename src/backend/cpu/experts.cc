#include "backend/cpu/experts.h"

#include <algorithm>
#include <span>
#include <utility>

#include "backend/cpu/for_rows.h"

namespace headwise::cpu {
namespace {

void Grow(std::vector<float>& floats, int64_t size) {
  if (floats.size() < static_cast<size_t>(size)) floats.resize(static_cast<size_t>(size));
}

// Chooses for all rows, and sorts what they chose by expert: of one expert in the order of rows.
void SortByExpert(const ExpertsArgs& args, ThreadPool& pool, ExpertsScratch& scratch) {
  const int64_t num_rows = args.x.shape[0];
  const auto num_chosen = static_cast<size_t>(args.routing.num_chosen);
  const size_t num_experts = args.experts.size();
  scratch.chosen.resize(static_cast<size_t>(num_rows) * num_chosen);
  // An exponential costs as much as a hundred simple elements.
  ForRows(num_rows, 100 * static_cast<int64_t>(num_experts), pool, [&](int64_t row) {
    ChooseExperts(args, row, std::span(scratch.chosen).subspan(static_cast<size_t>(row) * num_chosen, num_chosen));
  });
  scratch.slots_of.assign(num_experts, {});
  for (const ChosenExpert& each : scratch.chosen) ++scratch.slots_of[static_cast<size_t>(each.expert)].count;
  int64_t first = 0;
  scratch.used.clear();
  for (size_t expert = 0; expert < num_experts; ++expert) {
    RowRange& slots = scratch.slots_of[expert];
    if (slots.count > 0) scratch.used.push_back(static_cast<int32_t>(expert));
    slots.first = first;
    first += std::exchange(slots.count, 0);
  }
  scratch.slots.resize(scratch.chosen.size());
  for (size_t slot = 0; slot < scratch.chosen.size(); ++slot) {
    RowRange& slots = scratch.slots_of[static_cast<size_t>(scratch.chosen[slot].expert)];
    scratch.slots[static_cast<size_t>(slots.first + slots.count++)] = static_cast<int32_t>(slot);
  }
  std::ranges::stable_sort(scratch.used, [&](int32_t a, int32_t b) {
    return scratch.slots_of[static_cast<size_t>(a)].count > scratch.slots_of[static_cast<size_t>(b)].count;
  });
}

// The products of some experts, which have numbers of rows of one class.
class ExpertsOfClass {
 public:
  ExpertsOfClass(const ExpertsArgs& args, const KernelTable& kernels, ThreadPool& pool, MatMulScratch& matmul_scratch,
                 ExpertsScratch& scratch, ExpertStore& store, RowSums sums)
      : args_(args),
        kernels_(kernels),
        pool_(pool),
        matmul_scratch_(matmul_scratch),
        scratch_(scratch),
        store_(store),
        sums_(sums),
        is_one_row_(args.x.shape[0] == 1) {}

  // Leaves their outputs in scratch.outputs from row `first_output` on.
  void Run(std::span<const int32_t> experts, int64_t first_output) {
    const int64_t num_rows = PlaceRows(experts, first_output);
    scratch_.weights.clear();
    store_.Fetch(args_.experts, experts, pool_, scratch_.weights);
    Grow(scratch_.gate, num_rows * args_.ffn_dim());
    Grow(scratch_.up, num_rows * args_.ffn_dim());
    GateAndUp();
    Down(num_rows, first_output);
  }

 private:
  RowRange SlotsOf(int32_t expert) const { return scratch_.slots_of[static_cast<size_t>(expert)]; }

  // Fills `gathered` with the rows of x, expert by expert, `ranges` with those of each expert, and `output_of`. Returns
  // the number of rows of the products.
  int64_t PlaceRows(std::span<const int32_t> experts, int64_t first_output) {
    scratch_.gathered.clear();
    scratch_.ranges.clear();
    int64_t output = first_output;
    for (const int32_t expert : experts) {
      const RowRange slots = SlotsOf(expert);
      const auto num_placed = static_cast<int64_t>(scratch_.gathered.size());
      const bool takes_tiles =
          RowsClassOf(slots.count) != RowsClass::kFew || (sums_ == RowSums::kAlike && args_.compute == Compute::kBF16);
      const int64_t unit = takes_tiles ? kTileRangeUnit : 1;
      const int64_t first = CeilDiv(num_placed, unit) * unit;
      scratch_.gathered.resize(static_cast<size_t>(first), -1);
      scratch_.ranges.push_back({first, slots.count});
      for (int64_t i = 0; i < slots.count; ++i) {
        const int32_t slot = scratch_.slots[static_cast<size_t>(slots.first + i)];
        scratch_.gathered.push_back(static_cast<int32_t>(slot / args_.routing.num_chosen));
        scratch_.output_of[static_cast<size_t>(slot)] = static_cast<int32_t>(output++);
      }
    }
    return static_cast<int64_t>(scratch_.gathered.size());
  }

  TensorView RowsOf(std::vector<float>& floats, int64_t first, int64_t count, int64_t dim) const {
    return {floats.data() + first * dim, DType::kF32, {count, dim}};
  }

  // A single row is the input of all experts, and is brought into the kernels' form once.
  void GateAndUp() {
    const int64_t ffn_dim = args_.ffn_dim();
    scratch_.parts.clear();
    std::vector<RowRange> ranges;
    for (size_t i = 0; i < scratch_.weights.size(); ++i) {
      const ExpertWeights& expert = scratch_.weights[i];
      const RowRange rows = scratch_.ranges[i];
      const TensorView gate = RowsOf(scratch_.gate, rows.first, rows.count, ffn_dim);
      const TensorView up = RowsOf(scratch_.up, rows.first, rows.count, ffn_dim);
      scratch_.parts.push_back({expert.gate.weight, expert.gate.bias, gate});
      scratch_.parts.push_back({expert.up.weight, expert.up.bias, up});
      ranges.insert(ranges.end(), 2, is_one_row_ ? RowRange{0, 1} : rows);
    }
    const Activation activation{kernels_.elementwise, args_.activation};
    Multiply(args_.x, ranges, is_one_row_ ? std::span<const int32_t>() : scratch_.gathered, &activation);
  }

  void Down(int64_t num_rows, int64_t first_output) {
    scratch_.parts.clear();
    int64_t output = first_output;
    for (size_t i = 0; i < scratch_.weights.size(); ++i) {
      const ExpertWeights& expert = scratch_.weights[i];
      const int64_t count = scratch_.ranges[i].count;
      scratch_.parts.push_back(
          {expert.down.weight, expert.down.bias, RowsOf(scratch_.outputs, output, count, args_.x.shape[1])});
      output += count;
    }
    // Rows between ranges stay out.
    for (size_t row = 0; row < scratch_.gathered.size(); ++row) {
      int32_t& from = scratch_.gathered[row];
      if (from >= 0) from = static_cast<int32_t>(row);
    }
    Multiply(RowsOf(scratch_.up, 0, num_rows, args_.ffn_dim()), scratch_.ranges, scratch_.gathered);
  }

  void Multiply(const ConstTensorView& x, std::span<const RowRange> ranges, std::span<const int32_t> gathered,
                const Activation* activation = nullptr) {
    const MatMulArgs product{.x = x, .parts = scratch_.parts, .compute = args_.compute};
    RunMatMulJob({.args = product, .ranges = ranges, .gathered = gathered, .activation = activation}, kernels_.matmul,
                 pool_, matmul_scratch_, sums_);
  }

  const ExpertsArgs& args_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  MatMulScratch& matmul_scratch_;
  ExpertsScratch& scratch_;
  ExpertStore& store_;
  const RowSums sums_;
  const bool is_one_row_;
};

// Of each row the outputs of its experts, in the order in which it chose them.
void AddUp(const ExpertsArgs& args, const KernelTable& kernels, ThreadPool& pool, const ExpertsScratch& scratch) {
  const int64_t dim = args.x.shape[1];
  const int64_t num_chosen = args.routing.num_chosen;
  ForRows(args.x.shape[0], dim * num_chosen, pool, [&](int64_t row) {
    float* const out = static_cast<float*>(args.out.data) + row * dim;
    if (args.write == MatMulArgs::Write::kStore) std::fill_n(out, dim, 0.0f);
    for (int64_t slot = row * num_chosen; slot < (row + 1) * num_chosen; ++slot) {
      const auto at = static_cast<size_t>(slot);
      kernels.elementwise.add_scaled(scratch.outputs.data() + scratch.output_of[at] * dim, scratch.chosen[at].weight,
                                     out, dim);
    }
  });
}

}  // namespace

void RunExperts(const ExpertsArgs& args, const KernelTable& kernels, ThreadPool& pool, MatMulScratch& matmul_scratch,
                ExpertsScratch& scratch, ExpertStore& store, RowSums sums) {
  if (args.x.shape[0] == 0) return;
  SortByExpert(args, pool, scratch);
  scratch.output_of.resize(scratch.chosen.size());
  Grow(scratch.outputs, static_cast<int64_t>(scratch.chosen.size()) * args.x.shape[1]);
  ExpertsOfClass products(args, kernels, pool, matmul_scratch, scratch, store, sums);
  const size_t most_at_once = store.empty() ? scratch.used.size() : store.most_at_once();
  const auto count_of = [&](int32_t expert) { return scratch.slots_of[static_cast<size_t>(expert)].count; };
  int64_t output = 0;
  for (size_t begin = 0; begin < scratch.used.size();) {
    const RowsClass rows_class = RowsClassOf(count_of(scratch.used[begin]));
    size_t end = begin;
    const int64_t first_output = output;
    while (end < scratch.used.size() && end - begin < most_at_once &&
           RowsClassOf(count_of(scratch.used[end])) == rows_class) {
      output += count_of(scratch.used[end++]);
    }
    products.Run(std::span(scratch.used).subspan(begin, end - begin), first_output);
    begin = end;
  }
  AddUp(args, kernels, pool, scratch);
}

}  // namespace headwise::cpu
