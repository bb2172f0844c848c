// Products of layers that follow one another in what a GPU is given at once, as a decoding step's do, are those that
// are waited for one by one, bit for bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/backends.h"
#include "support/random_blocks.h"
#include "support/random_rows.h"

namespace headwise {
namespace {

struct Sizes {
  DType format;
  int64_t num_rows, hidden, inner;
  bool has_bias = false;

  std::string InWords() const {
    return std::string(NameOf(format)) + " rows " + std::to_string(num_rows) + " hidden " + std::to_string(hidden) +
           " inner " + std::to_string(inner);
  }
};

// The products of a layer, without attention between them: what came of q goes into the next one.
class Layers {
 public:
  Layers(Backend& backend, const Sizes& sizes, Random& random)
      : backend_(backend),
        sizes_(sizes),
        norm_(backend, {sizes.hidden}, random.Normal(sizes.hidden)),
        bias_(backend, {sizes.inner}, random.Normal(sizes.inner)) {
    const int64_t hidden = sizes.hidden;
    for (WeightMatrix* matrix : {&output_, &q_, &k_}) *matrix = Adopt({hidden, hidden}, random);
    for (WeightMatrix* matrix : {&gate_, &up_}) *matrix = Adopt({sizes.inner, hidden}, random);
    down_ = Adopt({hidden, sizes.inner}, random);
    first_q_ = random.Normal(sizes.num_rows * hidden);
    first_stream_ = random.Normal(sizes.num_rows * hidden);
  }

  // Rounds of several layers, each put by `run`, which is given them and may ask for a wait behind a product: the
  // stream, and the last keys.
  template <typename Run>
  Floats Outputs(const Run& run) {
    const Shape rows{sizes_.num_rows, sizes_.hidden};
    const Shape inner{sizes_.num_rows, sizes_.inner};
    const Held attended(backend_, rows, first_q_), stream(backend_, rows, first_stream_);
    const Held normed = Held::Poisoned(backend_, rows), k = Held::Poisoned(backend_, rows);
    const Held gate = Held::Poisoned(backend_, inner), up = Held::Poisoned(backend_, inner);
    run([&](bool waits) {
      const auto put = [&](const ConstTensorView& x, std::vector<MatMulPart> parts, bool has_norm, bool adds,
                           bool is_gated) {
        if (sizes_.has_bias) {
          for (MatMulPart& part : parts) {
            part.bias = ConstTensorView(bias_.view().data, DType::kF32, {part.weight.shape[0]});
          }
        }
        LinearArgs args{.product = {.x = has_norm ? ConstTensorView(normed.view()) : x,
                                    .parts = parts,
                                    .write = adds ? MatMulArgs::Write::kAdd : MatMulArgs::Write::kStore,
                                    .compute = Compute::kInt8}};
        if (has_norm) args.norm = NormArgs{.x = x, .weight = norm_.view(), .bias = {}, .out = normed.view()};
        if (is_gated) {
          args.activation =
              ActivateArgs{.kind = ActivateArgs::Kind::kGatedSilu, .gate = parts[0].out, .x = parts[1].out};
        }
        backend_.Linear(args);
        if (waits) {
          EXPECT_TRUE(backend_.device().Wait().ok());
        }
      };
      constexpr int kLayers = 3;
      for (int i = 0; i < kLayers; ++i) {
        put(attended.view(), {{.weight = output_, .bias = {}, .out = stream.view()}}, false, true, false);
        put(stream.view(),
            {{.weight = gate_, .bias = {}, .out = gate.view()}, {.weight = up_, .bias = {}, .out = up.view()}}, true,
            false, true);
        put(up.view(), {{.weight = down_, .bias = {}, .out = stream.view()}}, false, true, false);
        put(stream.view(),
            {{.weight = q_, .bias = {}, .out = attended.view()}, {.weight = k_, .bias = {}, .out = k.view()}}, true,
            false, false);
      }
    });
    Floats found = stream.Read();
    const Floats keys = k.Read();
    found.insert(found.end(), keys.begin(), keys.end());
    return found;
  }

 private:
  WeightMatrix Adopt(const Shape& shape, Random& random) {
    const std::vector<std::byte> bytes = RandomBlocks(sizes_.format, shape, random.rng());
    return backend_.AdoptWeights(ConstTensorView(bytes.data(), sizes_.format, shape)).value();
  }

  Backend& backend_;
  const Sizes sizes_;
  Held norm_, bias_;
  WeightMatrix output_, gate_, up_, down_, q_, k_;
  Floats first_q_, first_stream_;
};

class SuccessiveProducts : public testing::Test {
 protected:
  void SetUp() override {
    if (!IsTestDevice("cuda")) GTEST_SKIP() << "of a GPU's kernels";
    backend_ = std::move(AllBackends()[0].backend);
  }
  void ExpectSame(const Sizes& sizes, Random& random) {
    SCOPED_TRACE(sizes.InWords());
    Layers layers(*backend_, sizes, random);
    // As TimeOf does it, and one by one.
    const Floats at_once = layers.Outputs([&](const auto& put) {
      const Result<double> seconds = backend_->device().TimeOf([&] { put(/*waits=*/false); });
      ASSERT_TRUE(seconds.ok()) << seconds.status().message();
    });
    if (HasFatalFailure()) return;
    const Floats apart = layers.Outputs([&](const auto& put) {
      for (int i = 0; i < 3; ++i) put(/*waits=*/true);
    });
    ExpectSameBits(at_once, apart);
  }

 private:
  std::unique_ptr<Backend> backend_;
};

TEST_F(SuccessiveProducts, AreThoseThatAreWaitedFor) {
  Random random(1);
  for (const DType format : BlockFormatsOf("cuda")) {
    for (const int64_t num_rows : {1, 2, 4, 8, 13, 32}) {
      ExpectSame({.format = format, .num_rows = num_rows, .hidden = 768, .inner = 2304, .has_bias = random.Coin()},
                 random);
      if (HasFatalFailure()) return;
    }
  }
}

// More tiles than teams of warps, x that a launch of its own rounds, and sums that leave no room for two teams.
TEST_F(SuccessiveProducts, OfLargeMatrices) {
  Random random(2);
  for (const DType format : {DType::kQ8_0, DType::kQ4_K}) {
    for (const int64_t num_rows : {1, 3, 5, 8}) {
      ExpectSame({.format = format, .num_rows = num_rows, .hidden = 4096, .inner = 10240}, random);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headwise
