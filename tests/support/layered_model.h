// A tiny model of random weights whose layers differ in window and rotation, and what it computes, in plain loops over
// doubles that share nothing with the decoder.
//
//   layer   0        1                       2        3         4
//   window  8        -                       16       -         8
//   rope    theta 20 theta 300, linear by 4, theta 20 -         -
//                    half of each head
#ifndef HEADWISE_TESTS_SUPPORT_LAYERED_MODEL_H_
#define HEADWISE_TESTS_SUPPORT_LAYERED_MODEL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "model/model.h"

namespace headwise {

class LayeredModel {
 public:
  static constexpr int64_t kLayers = 5;
  static constexpr int64_t kModelDim = 32;
  static constexpr int64_t kFfnDim = 48;
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kKvHeads = 2;
  static constexpr int64_t kDim = 16;
  static constexpr int64_t kVocab = 64;

  static ModelConfig Config() {
    ModelConfig config;
    config.family = "qwen2";
    config.num_layers = kLayers;
    config.model_dim = kModelDim;
    config.ffn_dim = kFfnDim;
    config.num_q_heads = kHeads;
    config.num_kv_heads = kKvHeads;
    config.head_dim = kDim;
    config.vocab_size = kVocab;
    config.trained_length = 128;
    config.softmax_scale = 0.25;
    config.ropes = {
        {.rotary_dims = kDim, .theta = 20},
        {.rotary_dims = kDim / 2, .theta = 300, .scaling = RopeConfig::Scaling::kLinear, .factor = 4},
    };
    config.layers = {{.window = 8, .rope = 0},
                     {.window = {}, .rope = 1},
                     {.window = 16, .rope = 0},
                     {.window = {}, .rope = {}},
                     {.window = 8, .rope = {}}};
    return config;
  }

  LayeredModel() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers_.push_back({.norm = Random(kModelDim, 0.2, 1),
                         .q = Random(kHeads * kDim * kModelDim, 0.4),
                         .k = Random(kKvHeads * kDim * kModelDim, 0.4),
                         .v = Random(kKvHeads * kDim * kModelDim, 0.2),
                         .o = Random(kModelDim * kHeads * kDim, 0.2),
                         .mlp_norm = Random(kModelDim, 0.2, 1),
                         .gate = Random(kFfnDim * kModelDim, 0.15),
                         .up = Random(kFfnDim * kModelDim, 0.15),
                         .down = Random(kModelDim * kFfnDim, 0.15)});
    }
  }

  std::unique_ptr<Model> Make(Backend& backend) const {
    ModelWeights weights;
    const auto keep = [&](const std::vector<float>& values, const Shape& shape) {
      auto memory = std::make_unique<std::byte[]>(values.size() * sizeof(float));
      std::memcpy(memory.get(), values.data(), values.size() * sizeof(float));
      const ConstTensorView view(memory.get(), DType::kF32, shape);
      weights.owned.push_back(std::move(memory));
      return view;
    };
    for (const Layer& from : layers_) {
      LayerWeights layer;
      layer.norm.weight = keep(from.norm, {kModelDim});
      layer.q.weight = keep(from.q, {kHeads * kDim, kModelDim});
      layer.k.weight = keep(from.k, {kKvHeads * kDim, kModelDim});
      layer.v.weight = keep(from.v, {kKvHeads * kDim, kModelDim});
      layer.o.weight = keep(from.o, {kModelDim, kHeads * kDim});
      layer.mlp_norm.weight = keep(from.mlp_norm, {kModelDim});
      layer.gate.weight = keep(from.gate, {kFfnDim, kModelDim});
      layer.up.weight = keep(from.up, {kFfnDim, kModelDim});
      layer.down.weight = keep(from.down, {kModelDim, kFfnDim});
      weights.layers.push_back(layer);
    }
    weights.embedding = keep(embedding_, {kVocab, kModelDim});
    weights.output.weight = keep(output_, {kVocab, kModelDim});
    weights.final_norm.weight = keep(final_norm_, {kModelDim});
    auto model = MakeModel(Config(), std::move(weights), backend);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? *std::move(model) : nullptr;
  }

  // Of every position: logits [N, V], hidden states after the last norm [N, E]. Heads are full or streams from the
  // first token on.
  struct Rows {
    std::vector<double> logits;
    std::vector<double> hidden;
  };
  Rows Reference(std::span<const int32_t> ids, const HeadPlan& plan) const {
    Matrix x;
    for (const int32_t id : ids) {
      const auto row = embedding_.begin() + id * kModelDim;
      x.emplace_back(row, row + kModelDim);
    }
    for (int64_t layer_idx = 0; layer_idx < kLayers; ++layer_idx) {
      const Layer& layer = layers_[static_cast<size_t>(layer_idx)];
      const Matrix attended = Attend(layer_idx, Normed(x, layer.norm), plan);
      Add(x, Product(attended, layer.o));
      const Matrix normed = Normed(x, layer.mlp_norm);
      Matrix gate = Product(normed, layer.gate);
      const Matrix up = Product(normed, layer.up);
      for (size_t t = 0; t < gate.size(); ++t) {
        for (size_t i = 0; i < gate[t].size(); ++i) gate[t][i] *= up[t][i] / (1 + std::exp(-gate[t][i]));
      }
      Add(x, Product(gate, layer.down));
    }
    Rows rows;
    x = Normed(x, final_norm_);
    for (const std::vector<double>& row : x) rows.hidden.insert(rows.hidden.end(), row.begin(), row.end());
    for (const std::vector<double>& row : Product(x, output_)) {
      rows.logits.insert(rows.logits.end(), row.begin(), row.end());
    }
    return rows;
  }

 private:
  using Matrix = std::vector<std::vector<double>>;

  struct Layer {
    std::vector<float> norm, q, k, v, o, mlp_norm, gate, up, down;
  };

  std::vector<float> Random(int64_t size, double deviation, double mean = 0) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = static_cast<float>(normal(rng_));
    return values;
  }

  // x W^T.
  static Matrix Product(const Matrix& x, const std::vector<float>& weight) {
    Matrix y;
    for (const std::vector<double>& row : x) {
      std::vector<double>& out = y.emplace_back(weight.size() / row.size());
      for (size_t o = 0; o < out.size(); ++o) {
        for (size_t i = 0; i < row.size(); ++i) out[o] += row[i] * weight[o * row.size() + i];
      }
    }
    return y;
  }
  static Matrix Normed(const Matrix& x, const std::vector<float>& weight) {
    Matrix y = x;
    for (std::vector<double>& row : y) {
      double squares = 0;
      for (const double value : row) squares += value * value;
      for (size_t i = 0; i < row.size(); ++i) row[i] *= weight[i] / std::sqrt(squares / kModelDim + 1e-5);
    }
    return y;
  }
  static void Add(Matrix& x, const Matrix& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
    }
  }

  // Head `head` of a row of q or k, at position `pos`.
  static std::vector<double> Rotated(int64_t layer_idx, const std::vector<double>& row, int64_t head, int64_t pos) {
    std::vector<double> x(row.begin() + head * kDim, row.begin() + (head + 1) * kDim);
    if (layer_idx >= 3) return x;
    const bool is_wide = layer_idx != 1;
    const size_t half = is_wide ? 8 : 4;
    for (size_t i = 0; i < half; ++i) {
      const double exponent = -static_cast<double>(i) / static_cast<double>(half);
      const double angle = static_cast<double>(pos) * (is_wide ? std::pow(20, exponent) : std::pow(300, exponent) / 4);
      const double a = x[i], b = x[i + half];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    return x;
  }

  static Matrix AttendHead(int64_t layer_idx, int64_t head, const HeadRule& rule, const Matrix& q, const Matrix& k,
                           const Matrix& v) {
    constexpr int64_t kWindows[] = {8, 1000000, 16, 1000000, 8};
    const int64_t window = kWindows[layer_idx];
    const bool is_full = rule.kind == HeadRule::Kind::kFull;
    const int64_t recent = is_full ? window : std::min(rule.recent, window);
    const int64_t sink = is_full ? 0 : rule.sink;
    const int64_t kv_head = head / (kHeads / kKvHeads);
    Matrix out;
    for (int64_t t = 0; t < static_cast<int64_t>(q.size()); ++t) {
      const int64_t sink_pos = rule.positions == Positions::kCache ? std::min(t, sink + recent - 1) : t;
      std::vector<double> sum(kDim);
      double total = 0;
      for (int64_t j = 0; j <= t; ++j) {
        const int64_t pos = j < sink ? sink_pos : t;
        if (pos - j >= (j < sink ? window : recent)) continue;
        const std::vector<double> query = Rotated(layer_idx, q[static_cast<size_t>(t)], head, pos);
        const std::vector<double> key = Rotated(layer_idx, k[static_cast<size_t>(j)], kv_head, j);
        double score = 0;
        for (size_t i = 0; i < kDim; ++i) score += query[i] * key[i] * 0.25;
        const double weight = std::exp(score);
        total += weight;
        for (size_t i = 0; i < kDim; ++i) {
          sum[i] += weight * v[static_cast<size_t>(j)][static_cast<size_t>(kv_head * kDim) + i];
        }
      }
      for (double& value : sum) value /= total;
      out.push_back(std::move(sum));
    }
    return out;
  }

  Matrix Attend(int64_t layer_idx, const Matrix& normed, const HeadPlan& plan) const {
    const Layer& layer = layers_[static_cast<size_t>(layer_idx)];
    const Matrix q = Product(normed, layer.q), k = Product(normed, layer.k), v = Product(normed, layer.v);
    Matrix attended(normed.size());
    for (int64_t head = 0; head < kHeads; ++head) {
      const HeadRule& rule = plan.At(layer_idx, head / (kHeads / kKvHeads));
      const Matrix out = AttendHead(layer_idx, head, rule, q, k, v);
      for (size_t t = 0; t < out.size(); ++t) attended[t].insert(attended[t].end(), out[t].begin(), out[t].end());
    }
    return attended;
  }

  std::mt19937_64 rng_{11};
  std::vector<float> embedding_ = Random(kVocab * kModelDim, 1);
  std::vector<float> output_ = Random(kVocab * kModelDim, 0.3);
  std::vector<float> final_norm_ = Random(kModelDim, 0.2, 1);
  std::vector<Layer> layers_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_LAYERED_MODEL_H_
