// Products of layers that follow one another in what a GPU is given at once, as a decoding step's do, are those that
// are waited for one by one with something else between them, bit for bit: what one leaves for the next does not show.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
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
  std::optional<DType> k_format = std::nullopt;  // where it is another one

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
    for (WeightMatrix* matrix : {&output_, &q_}) *matrix = Adopt({hidden, hidden}, random);
    k_ = Adopt({hidden, hidden}, random, sizes.k_format);
    for (WeightMatrix* matrix : {&gate_, &up_}) *matrix = Adopt({sizes.inner, hidden}, random);
    down_ = Adopt({hidden, sizes.inner}, random);
    first_q_ = random.Normal(sizes.num_rows * hidden);
    first_stream_ = random.Normal(sizes.num_rows * hidden);
  }

  // The stream and the last keys behind what `run` does with a function that puts several layers, and behind each
  // product calls what it is given. `then`: the product behind a gate is part of the gate's call.
  template <typename Run>
  Floats Outputs(bool then, const Run& run) {
    const Shape rows{sizes_.num_rows, sizes_.hidden};
    const Shape inner{sizes_.num_rows, sizes_.inner};
    const Held attended(backend_, rows, first_q_), stream(backend_, rows, first_stream_);
    const Held normed = Held::Poisoned(backend_, rows), k = Held::Poisoned(backend_, rows);
    const Held gate = Held::Poisoned(backend_, inner), up = Held::Poisoned(backend_, inner);
    run([&](const auto& behind) {
      constexpr int kLayers = 3;
      for (int i = 0; i < kLayers; ++i) {
        Put({.x = attended.view(), .parts = {{.weight = output_, .bias = {}, .out = stream.view()}}, .adds = true});
        behind();
        const Product of_gate{
            .x = stream.view(),
            .parts = {{.weight = gate_, .bias = {}, .out = gate.view()}, {.weight = up_, .bias = {}, .out = up.view()}},
            .normed = normed.view(),
            .is_gated = true};
        const Product of_down{
            .x = up.view(), .parts = {{.weight = down_, .bias = {}, .out = stream.view()}}, .adds = true};
        if (then) {
          Put(of_gate, of_down);
        } else {
          Put(of_gate);
          behind();
          Put(of_down);
        }
        behind();
        Put({.x = stream.view(),
             .parts = {{.weight = q_, .bias = {}, .out = attended.view()}, {.weight = k_, .bias = {}, .out = k.view()}},
             .normed = normed.view()});
        behind();
      }
    });
    Floats found = stream.Read();
    const Floats keys = k.Read();
    found.insert(found.end(), keys.begin(), keys.end());
    return found;
  }

 private:
  struct Product {
    ConstTensorView x;
    std::vector<MatMulPart> parts;
    TensorView normed = {};  // where x is normed to before, or absent
    bool adds = false;
    bool is_gated = false;
  };
  static MatMulArgs ArgsOf(const Product& product) {
    return {.x = product.normed.present() ? ConstTensorView(product.normed) : product.x,
            .parts = product.parts,
            .write = product.adds ? MatMulArgs::Write::kAdd : MatMulArgs::Write::kStore,
            .compute = Compute::kInt8};
  }
  void Put(Product product, std::optional<Product> then = std::nullopt) {
    const auto add_bias = [&](Product& to) {
      for (MatMulPart& part : to.parts) {
        if (sizes_.has_bias) part.bias = ConstTensorView(bias_.view().data, DType::kF32, {part.weight.shape[0]});
      }
    };
    add_bias(product);
    LinearArgs args{.product = ArgsOf(product)};
    if (then) {
      add_bias(*then);
      args.then = ArgsOf(*then);
    }
    if (product.normed.present())
      args.norm = NormArgs{.x = product.x, .weight = norm_.view(), .bias = {}, .out = product.normed};
    if (product.is_gated) {
      args.activation =
          ActivateArgs{.kind = ActivateArgs::Kind::kGatedSilu, .gate = product.parts[0].out, .x = product.parts[1].out};
    }
    backend_.Linear(args);
  }
  WeightMatrix Adopt(const Shape& shape, Random& random, std::optional<DType> other_format = std::nullopt) {
    const DType format = other_format.value_or(sizes_.format);
    const std::vector<std::byte> bytes = RandomBlocks(format, shape, random.rng());
    return backend_.AdoptWeights(ConstTensorView(bytes.data(), format, shape)).value();
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
  // As TimeOf does it, which puts all three times, and one by one.
  void ExpectSame(Layers& layers) {
    Device& device = backend_->device();
    const Floats at_once = layers.Outputs(/*then=*/true, [&](const auto& put) {
      const Result<double> seconds = device.TimeOf([&] { put([] {}); });
      ASSERT_TRUE(seconds.ok()) << seconds.status().message();
    });
    if (HasFatalFailure()) return;
    const Held other(*backend_, {1, 4}, Floats(4, 1.0f));
    const Floats apart = layers.Outputs(/*then=*/false, [&](const auto& put) {
      for (int i = 0; i < 3; ++i) {
        put([&] {
          backend_->Clamp({.x = other.view(), .limit = 2.0f});
          ASSERT_TRUE(device.Wait().ok());
        });
      }
    });
    ExpectSameBits(at_once, apart);
  }
  Backend& backend() { return *backend_; }

 private:
  std::unique_ptr<Backend> backend_;
};

TEST_F(SuccessiveProducts, AreThoseThatAreWaitedFor) {
  Random random(1);
  for (const DType format : BlockFormatsOf("cuda")) {
    for (const int64_t num_rows : {1, 2, 4, 8, 13, 32}) {
      const Sizes sizes{
          .format = format, .num_rows = num_rows, .hidden = 768, .inner = 2304, .has_bias = random.Coin()};
      SCOPED_TRACE(sizes.InWords());
      Layers layers(backend(), sizes, random);
      ExpectSame(layers);
      if (HasFatalFailure()) return;
    }
  }
}

// More tiles than multiprocessors: products leave their outputs as bytes for those behind them.
TEST_F(SuccessiveProducts, OfMoreTilesThanMultiprocessors) {
  Random random(3);
  for (const DType format : BlockFormatsOf("cuda")) {
    for (const int64_t num_rows : {1, 3, 8}) {
      const Sizes sizes{
          .format = format, .num_rows = num_rows, .hidden = 2304, .inner = 4608, .has_bias = random.Coin()};
      SCOPED_TRACE(sizes.InWords());
      Layers layers(backend(), sizes, random);
      ExpectSame(layers);
      if (HasFatalFailure()) return;
    }
  }
}

// Several sets of tiles of each team, whose outputs pass through two buffers in turns.
TEST_F(SuccessiveProducts, OfManySetsOfTiles) {
  Random random(4);
  for (const int64_t num_rows : {1, 3}) {
    const Sizes sizes{.format = DType::kQ4_0, .num_rows = num_rows, .hidden = 2304, .inner = 36096};
    SCOPED_TRACE(sizes.InWords());
    Layers layers(backend(), sizes, random);
    ExpectSame(layers);
    if (HasFatalFailure()) return;
  }
}

// Both read what was left for the norm ahead of them.
TEST_F(SuccessiveProducts, OfQueriesAndKeysInTwoFormats) {
  Random random(5);
  for (const int64_t num_rows : {1, 8}) {
    const Sizes sizes{
        .format = DType::kQ4_K, .num_rows = num_rows, .hidden = 2304, .inner = 4608, .k_format = DType::kQ6_K};
    SCOPED_TRACE(sizes.InWords());
    Layers layers(backend(), sizes, random);
    ExpectSame(layers);
    if (HasFatalFailure()) return;
  }
}

// Rows so long that a gate and what it gates are sets of one tile each.
TEST_F(SuccessiveProducts, OfGatesThatAreWrittenByThemselves) {
  Random random(6);
  const Sizes sizes{.format = DType::kQ8_0, .num_rows = 8, .hidden = 7168, .inner = 4608};
  SCOPED_TRACE(sizes.InWords());
  Layers layers(backend(), sizes, random);
  ExpectSame(layers);
}

// More tiles than teams of warps, x that a launch of its own rounds, and (8 rows of q8_0) sums that leave no room for
// two teams.
TEST_F(SuccessiveProducts, OfLargeMatrices) {
  Random random(2);
  for (const DType format : {DType::kQ8_0, DType::kQ4_K}) {
    for (const int64_t num_rows : {1, 3, 8}) {
      const Sizes sizes{.format = format, .num_rows = num_rows, .hidden = 4096, .inner = 10240};
      SCOPED_TRACE(sizes.InWords());
      Layers layers(backend(), sizes, random);
      ExpectSame(layers);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headwise
