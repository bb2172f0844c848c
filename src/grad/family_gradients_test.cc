// Gradients of every family against finite differences, and what families refuse; layers that differ.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "grad/grad_test_support.h"
#include "model/load_config.h"
#include "support/golden.h"
#include "support/layered_model.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

// ---- every family ----

class FamilyTest : public testing::TestWithParam<std::string> {
 protected:
  LoadedModel loaded_{GetParam()};
  GoldenTensors golden_{GetParam() + "/golden.safetensors"};
  std::vector<int32_t> ids_ = golden_.Ids("ids_a");

  const Model& model() const { return *loaded_.model; }
};

TEST_P(FamilyTest, HiddenStatesMatchHuggingFace) {
  const auto wanted = LastPositions(static_cast<int64_t>(ids_.size()), static_cast<int64_t>(ids_.size()));
  ThreadPool pool(2);
  GradDecoder<double> decoder(model(), pool);
  std::vector<double> hidden;
  decoder.Forward({.ids = ids_, .wanted = wanted, .on_attention = {}}, hidden);
  std::vector<double> expected = Widened(golden_.F32("final_hidden_a"));
  for (double& value : expected) value *= model().config.logit_scale;
  // The golden file holds float32.
  EXPECT_LE(MaxDifference(hidden, expected), 2e-6);
}

TEST_P(FamilyTest, LossesMatchLogitsOfHuggingFace) {
  const auto num_tokens = static_cast<int64_t>(ids_.size()) - 1;
  const std::vector<double> logits = Widened(golden_.F32("logits_a"));
  const int64_t vocab = model().config.vocab_size;
  ThreadPool pool(2);
  GradDecoder<double> decoder(model(), pool);
  std::vector<double> hidden;
  std::vector<double> d_hidden;
  for (int64_t pos = 0; pos < num_tokens; ++pos) {
    const std::vector<int32_t> wanted{static_cast<int32_t>(pos)};
    const int32_t target = ids_[static_cast<size_t>(pos) + 1];
    decoder.Forward({.ids = ids_, .wanted = wanted, .on_attention = {}}, hidden);
    const double* row = logits.data() + pos * vocab;
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - row[target]);
    EXPECT_NEAR(decoder.NllLoss(hidden, std::span(&target, 1), d_hidden), std::log(sum), 5e-6) << pos;
  }
}

// What planners read through on_attention.
TEST_P(FamilyTest, OutputsAreMeansOfValuesByProbability) {
  ThreadPool pool(2);
  GradDecoder<double> decoder(model(), pool);
  std::vector<double> hidden;
  const auto check = [&](const AttentionView<double>& view) {
    const AttentionShape<double>& shape = view.shape;
    const int64_t dim = shape.head_dim;
    double worst = 0;
    for (int64_t head_row = 0; head_row < shape.num_tokens * shape.num_q_heads; ++head_row) {
      const int64_t q_head = head_row % shape.num_q_heads;
      const int64_t kv_head = q_head / (shape.num_q_heads / shape.num_kv_heads);
      std::vector<double> difference(view.out + head_row * dim, view.out + (head_row + 1) * dim);
      for (int64_t key = 0; key < shape.num_tokens; ++key) {
        const double probability = view.Probability(q_head, head_row / shape.num_q_heads, key);
        const double* value = view.v + (key * shape.num_kv_heads + kv_head) * dim;
        for (int64_t d = 0; d < dim; ++d) difference[static_cast<size_t>(d)] -= probability * value[d];
      }
      worst = std::max(worst, MaxMagnitude(difference));
    }
    EXPECT_LE(worst, 1e-12) << view.layer_idx;
  };
  decoder.Forward({.ids = ids_, .wanted = {}, .on_attention = check}, hidden);
}

// The loss of the last tokens of a text as a function of gates.
template <typename Real>
class GatedLoss {
 public:
  static constexpr int64_t kLast = 20;

  GatedLoss(const Model& model, std::vector<int32_t> ids, const HeadRule& bounded)
      : ids_(std::move(ids)),
        bounded_(bounded),
        wanted_(LastPositions(num_tokens(), kLast)),
        decoder_(model, pool_),
        num_gates_(static_cast<size_t>(model.config.num_layers * model.config.num_kv_heads)) {}

  double At(const std::vector<double>& gates) {
    const HeadGates head_gates{.values = gates, .bounded = bounded_};
    std::vector<Real> hidden;
    decoder_.Forward({.ids = std::span(ids_).first(static_cast<size_t>(num_tokens())),
                      .wanted = wanted_,
                      .gates = &head_gates,
                      .keep = GradDecoder<Real>::ForwardArgs::Keep::kForBackward,
                      .on_attention = {}},
                     hidden);
    return decoder_.NllLoss(hidden, std::span(ids_).last(kLast), d_hidden_);
  }

  std::vector<double> GradientAt(const std::vector<double>& gates, std::span<Influence> influence = {}) {
    At(gates);
    std::vector<double> d_gates(num_gates_);
    decoder_.Backward({.d_hidden = d_hidden_, .d_gates = d_gates, .influence = influence});
    return d_gates;
  }

  std::vector<double> RandomGates() const {
    Rng rng(7);
    std::vector<double> gates(num_gates_);
    for (double& gate : gates) gate = 0.1 + 0.8 * rng.Uniform();
    return gates;
  }

  int64_t num_tokens() const { return static_cast<int64_t>(ids_.size()) - 1; }
  size_t num_gates() const { return num_gates_; }

 private:
  std::vector<int32_t> ids_;
  HeadRule bounded_;
  std::vector<int32_t> wanted_;
  ThreadPool pool_{2};
  GradDecoder<Real> decoder_;
  size_t num_gates_;
  std::vector<Real> d_hidden_;
};

// The gradient of every gate, found by moving it by `step`.
void CheckGatesByFiniteDifferences(const Model& model, const std::vector<int32_t>& ids, double step) {
  GatedLoss<double> loss(model, ids, HeadRule::Stream(3, 6));
  const std::vector<double> gates = loss.RandomGates();
  const std::vector<double> d_gates = loss.GradientAt(gates);
  std::vector<double> slopes;
  for (size_t i = 0; i < gates.size(); ++i) {
    std::vector<double> moved = gates;
    moved[i] += step;
    const double above = loss.At(moved);
    moved[i] -= 2 * step;
    slopes.push_back((above - loss.At(moved)) / (2 * step));
  }
  EXPECT_GT(MaxMagnitude(slopes), 1e-3);  // a gradient of nothing would agree with anything
  EXPECT_LE(MaxDifference(d_gates, slopes), 1e-6 * MaxMagnitude(slopes));
}

TEST_P(FamilyTest, GateGradientsMatchFiniteDifferences) {
  if (model().config.AnyExperts()) GTEST_SKIP() << "no gradients through experts";
  CheckGatesByFiniteDifferences(model(), ids_, 1e-4);
}

TEST_P(FamilyTest, GateGradientsAreTheSameInF32) {
  if (model().config.AnyExperts()) GTEST_SKIP() << "no gradients through experts";
  GatedLoss<float> loss(model(), ids_, HeadRule::Stream(3, 6));
  GatedLoss<double> exact(model(), ids_, HeadRule::Stream(3, 6));
  const std::vector<double> expected = exact.GradientAt(exact.RandomGates());
  EXPECT_LE(MaxDifference(loss.GradientAt(loss.RandomGates()), expected), 1e-4 * MaxMagnitude(expected));
}

// Under a rule that hides one key from the last query and nothing else, the loss rises by the key's influence as a
// head's gate falls from 1.
TEST_P(FamilyTest, InfluenceMatchesFiniteDifferences) {
  if (model().config.AnyExperts()) GTEST_SKIP() << "no gradients through experts";
  constexpr double kStep = 1e-4;
  const ModelConfig& config = model().config;
  const auto num_tokens = static_cast<int64_t>(ids_.size()) - 1;
  double unused = 0;
  const auto influence = ComputeInfluence<double>(model(), ids_, GatedLoss<double>::kLast, Influence::By::kBlock,
                                                  /*block_tokens=*/1, &unused);
  std::vector<double> expected;
  std::vector<double> found;
  for (const int64_t key : {int64_t{0}, num_tokens - 12, num_tokens - 2}) {
    GatedLoss<double> loss(model(), ids_, HeadRule::Stream(key, num_tokens - 1 - key));
    for (size_t gate = 0; gate < loss.num_gates(); ++gate) {
      std::vector<double> gates(loss.num_gates(), 1.0);
      const double at_one = loss.At(gates);
      gates[gate] = 1 - kStep;
      const double below = loss.At(gates);
      gates[gate] = 1 - 2 * kStep;
      expected.push_back((4 * below - 3 * at_one - loss.At(gates)) / (2 * kStep));
      const Influence& layer = influence[gate / static_cast<size_t>(config.num_kv_heads)];
      const int64_t group = config.q_heads_per_kv_head();
      const int64_t first = static_cast<int64_t>(gate) % config.num_kv_heads * group;
      double sum = 0;
      for (int64_t q_head = first; q_head < first + group; ++q_head) {
        sum += layer.sums[static_cast<size_t>((q_head * num_tokens + num_tokens - 1) * num_tokens + key)];
      }
      found.push_back(sum);
    }
  }
  EXPECT_GT(MaxMagnitude(expected), 1e-4);
  EXPECT_LE(MaxDifference(found, expected), 1e-6 * MaxMagnitude(expected));
}

// Beside a bounded path too, wherever the gates stand: under a rule that hides one key from the last query and nothing
// else, the slope towards that rule is the key's influence.
TEST_P(FamilyTest, InfluenceWithGatesIsTheSlopeTowardsTheRule) {
  if (model().config.AnyExperts()) GTEST_SKIP() << "no gradients through experts";
  const ModelConfig& config = model().config;
  const auto num_tokens = static_cast<int64_t>(ids_.size()) - 1;
  const int64_t group = config.q_heads_per_kv_head();
  std::vector<double> expected;
  std::vector<double> found;
  for (const int64_t key : {int64_t{0}, num_tokens - 2}) {
    GatedLoss<double> loss(model(), ids_, HeadRule::Stream(key, num_tokens - 1 - key));
    const std::vector<double> gates = loss.RandomGates();
    std::vector<Influence> influence(static_cast<size_t>(config.num_layers),
                                     Influence::For(Influence::By::kBlock, num_tokens, config.num_q_heads, 1));
    for (const double slope : loss.GradientAt(gates, influence)) expected.push_back(-slope);
    for (int64_t head = 0; head < config.num_layers * config.num_kv_heads; ++head) {
      const Influence& layer = influence[static_cast<size_t>(head / config.num_kv_heads)];
      double sum = 0;
      for (int64_t q_head = head % config.num_kv_heads * group; q_head < (head % config.num_kv_heads + 1) * group;
           ++q_head) {
        sum += layer.sums[static_cast<size_t>((q_head * num_tokens + num_tokens - 1) * num_tokens + key)];
      }
      found.push_back(sum / gates[static_cast<size_t>(head)]);
    }
  }
  EXPECT_GT(MaxMagnitude(expected), 1e-4);
  EXPECT_LE(MaxDifference(found, expected), 1e-6 * MaxMagnitude(expected));
}

TEST_P(FamilyTest, ForwardFromALayerIsForwardWithThoseGates) {
  const ModelConfig& config = model().config;
  ThreadPool pool(2);
  GradDecoder<float> decoder(model(), pool);
  using Forward = GradDecoder<float>::ForwardArgs;
  const auto wanted = LastPositions(static_cast<int64_t>(ids_.size()), 5);
  std::vector<float> dense;
  std::vector<float> found;
  std::vector<float> expected;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    std::vector<double> gates(static_cast<size_t>(config.num_layers * config.num_kv_heads), 1.0);
    gates[static_cast<size_t>(layer_idx * config.num_kv_heads)] = 0;
    gates.back() = 0.25;
    const HeadGates head_gates{.values = gates, .bounded = HeadRule::Stream(3, 6)};
    decoder.Forward({.ids = ids_, .wanted = wanted, .keep = Forward::Keep::kInputs, .on_attention = {}}, dense);
    decoder.ForwardFrom(layer_idx, head_gates, found);
    std::vector<float> again;
    decoder.ForwardFrom(layer_idx, head_gates, again);
    EXPECT_EQ(again, found);  // nothing that it starts from was lost
    decoder.Forward({.ids = ids_, .wanted = wanted, .gates = &head_gates, .on_attention = {}}, expected);
    EXPECT_EQ(found, expected);
    EXPECT_NE(found, dense);
  }
}

// Against differences of the loss itself, which is piecewise linear in logits.
TEST_P(FamilyTest, TheMarginsGradientMatchesFiniteDifferences) {
  constexpr double kStep = 1e-5;
  ThreadPool pool(2);
  GradDecoder<double> decoder(model(), pool);
  const auto wanted = LastPositions(static_cast<int64_t>(ids_.size()) - 1, 4);
  const auto targets = std::span(ids_).last(4);
  std::vector<double> hidden;
  decoder.Forward({.ids = ids_, .wanted = wanted, .on_attention = {}}, hidden);
  std::vector<double> gradient;
  decoder.MarginLoss(hidden, targets, gradient);
  std::vector<double> slopes;
  std::vector<double> unused;
  for (double& value : hidden) {
    value += kStep;
    const double above = decoder.MarginLoss(hidden, targets, unused);
    value -= 2 * kStep;
    slopes.push_back((above - decoder.MarginLoss(hidden, targets, unused)) / (2 * kStep));
    value += kStep;
  }
  EXPECT_GT(MaxMagnitude(slopes), 1e-3);
  EXPECT_LE(MaxDifference(gradient, slopes), 1e-6 * MaxMagnitude(slopes));
}

// Every matrix is counted and none twice: after a run with gates and one with influence a decoder holds it all. In
// double every weight is widened.
TEST_P(FamilyTest, MemoryIsForeseen) {
  if (model().config.AnyExperts()) GTEST_SKIP() << "no gradients through experts";
  constexpr int64_t kLast = 5;
  const ModelConfig& config = model().config;
  const auto num_tokens = static_cast<int64_t>(ids_.size());
  const auto wanted = LastPositions(num_tokens, kLast);
  ThreadPool pool(2);
  GradDecoder<double> decoder(model(), pool);
  const std::vector<double> gates(static_cast<size_t>(config.num_layers * config.num_kv_heads), 0.5);
  const HeadGates head_gates{.values = gates, .bounded = HeadRule::Stream(3, 6)};
  std::vector<double> d_gates(gates.size());
  std::vector<Influence> influence(static_cast<size_t>(config.num_layers),
                                   Influence::For(Influence::By::kDistance, num_tokens, config.num_q_heads));
  std::vector<double> hidden;
  std::vector<double> d_hidden;
  for (const HeadGates* each : {&head_gates, static_cast<const HeadGates*>(nullptr)}) {
    decoder.Forward({.ids = ids_,
                     .wanted = wanted,
                     .gates = each,
                     .keep = GradDecoder<double>::ForwardArgs::Keep::kForBackward,
                     .on_attention = {}},
                    hidden);
    decoder.NllLoss(hidden, std::span(ids_).last(kLast), d_hidden);
    if (each != nullptr) decoder.Backward({.d_hidden = d_hidden, .d_gates = d_gates, .influence = {}});
    if (each == nullptr) decoder.Backward({.d_hidden = d_hidden, .d_gates = {}, .influence = influence});
  }
  const int64_t foreseen = GradMemoryBytes(config, num_tokens, sizeof(double));
  // Room for a row between layers is foreseen, which a model of one has none of.
  const int64_t between = config.num_layers > 1 ? 0 : num_tokens * config.model_dim * int64_t{sizeof(double)};
  EXPECT_EQ(decoder.HeldBytes(), foreseen - between);
}

std::string FamilyName(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(info.param.rfind('/') + 1);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Tiny, FamilyTest, testing::ValuesIn(GoldenFolders(SourcePath("tests/golden/tiny"))),
                         FamilyName);

TEST(CheckHasGradients, NamesWhatCannotRunAndWhatCan) {
  ModelConfig config = ReadModelConfig(SourcePath("tests/golden/tiny/mixtral")).value();
  EXPECT_EQ(CheckHasGradients(config, "plan duo").message(),
            "plan duo needs gradients, which are not computed through the 4 experts of family mixtral; plan razor, "
            "plan profile and plan moa --influence measured need none");
  config.experts = {};
  EXPECT_TRUE(CheckHasGradients(config, "plan duo").ok());
}

// No family has both so far. Which entries were clamped cannot be told from values that were normed or rotated.
TEST(ClampedQueries, HaveGradientsUnderRopeAndNorms) {
  for (const char* name : {"llama-gqa", "qwen3"}) {
    const std::string folder = SourcePath("tests/golden/tiny/") + name;
    const LoadedModel loaded(folder);
    loaded.model->config.qkv_clip = 0.5;
    // A small step: an entry that it carries across its limit has no one slope.
    CheckGatesByFiniteDifferences(*loaded.model, GoldenTensors(folder + "/golden.safetensors").Ids("ids_a"), 1e-6);
  }
}

// ---- layers that differ ----

std::vector<int32_t> LayeredIds() {
  Rng rng(4);
  std::vector<int32_t> ids(60);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(LayeredModel::kVocab));
  return ids;
}

TEST(LayersThatDiffer, HiddenStatesAreThoseOfPlainLoops) {
  const LayeredModel layered;
  const auto backend = *MakeBackend({.name = "ref"});
  const auto model = layered.Make(*backend);
  const std::vector<int32_t> ids = LayeredIds();
  const auto wanted = LastPositions(60, 60);
  HeadPlan plan = HeadPlan::Dense(model->config.shape());
  ThreadPool pool(2);
  GradDecoder<double> decoder(*model, pool);
  std::vector<double> hidden;
  decoder.Forward({.ids = ids, .wanted = wanted, .on_attention = {}}, hidden);
  EXPECT_LE(MaxDifference(hidden, layered.Reference(ids, plan).hidden), 1e-9);
  // With gates of 0 every head is bounded, by its rule and by its layer's window.
  const std::vector<double> gates(plan.rules.size());
  for (const HeadRule& bounded : {HeadRule::Stream(3, 6), HeadRule::Stream(2, 12)}) {
    for (HeadRule& rule : plan.rules) rule = bounded;
    const HeadGates head_gates{.values = gates, .bounded = bounded};
    decoder.Forward({.ids = ids, .wanted = wanted, .gates = &head_gates, .on_attention = {}}, hidden);
    EXPECT_LE(MaxDifference(hidden, layered.Reference(ids, plan).hidden), 1e-9);
  }
}

TEST(LayersThatDiffer, GateGradientsMatchFiniteDifferences) {
  const auto backend = *MakeBackend({.name = "ref"});
  // Its loss is bent more: at 1e-4 the third derivative shows.
  CheckGatesByFiniteDifferences(*LayeredModel().Make(*backend), LayeredIds(), 1e-5);
}

}  // namespace
}  // namespace headwise
