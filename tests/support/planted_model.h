// A model whose far-sighted heads are known by construction, as an answer sheet for planners.
//
// 2 layers, 4 heads of 128, a residual stream of three parts of V each: the token, the token before it, and what heads
// found out. Identities are one-hot; half of every head is rotated and sees positions, half is not and sees content.
//   layer 0 head 0  looks one token back and writes that token's identity into the second part
//   layer 1 head 1  echo: looks at tokens equal to its own, writes what stood before them
//   layer 1 head 2  induction: looks at tokens that follow a token equal to its own, writes them
//   all others      look one to three tokens back and write a little of what they see
// Only the two in layer 1 ever need a far token.
#ifndef HEADWISE_TESTS_SUPPORT_PLANTED_MODEL_H_
#define HEADWISE_TESTS_SUPPORT_PLANTED_MODEL_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/all_backends.h"
#include "model/model.h"
#include "model/rope.h"

namespace headwise {

class PlantedModel {
 public:
  static constexpr int64_t kVocab = 64;
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kDim = 128;  // D: the first half rotated
  static constexpr int64_t kModelDim = 3 * kVocab;
  static constexpr int64_t kEchoHead = kHeads + 1;  // index [layer * Hkv + head]
  static constexpr int64_t kInductionHead = kHeads + 2;

  // With a larger scale of the logits the model is more certain of what it found.
  explicit PlantedModel(float logit_scale = 0.5f) : backend_(*MakeBackend({.name = "ref"})) {
    ModelConfig config;
    config.family = "llama";
    config.num_layers = 2;
    config.model_dim = kModelDim;
    config.ffn_dim = 4;
    config.num_q_heads = config.num_kv_heads = kHeads;
    config.head_dim = kDim;
    config.vocab_size = kVocab;
    config.trained_length = 4096;
    config.qkv_bias = true;
    config.norm_eps = 1e-9;
    config.softmax_scale = 1.0 / std::sqrt(static_cast<double>(kDim));
    // Fast frequencies: one token more or less is far.
    config.SetLayersAlike(RopeConfig{.rotary_dims = kDim / 2, .theta = 20.0}, /*window=*/{});
    frequencies_ = RopeFrequencies(config, 0, 0).at(0);

    ModelWeights weights;
    std::vector<float> embedding(kVocab * kModelDim);
    for (int64_t id = 0; id < kVocab; ++id) embedding[At(id, id)] = 1;
    weights.embedding = Keep(weights, embedding, {kVocab, kModelDim});
    std::vector<float> output(kVocab * kModelDim);
    for (int64_t id = 0; id < kVocab; ++id) output[At(id, 2 * kVocab + id)] = logit_scale;
    weights.output.weight = Keep(weights, output, {kVocab, kModelDim});
    weights.final_norm.weight = Ones(weights);
    for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) AddLayer(weights, layer_idx);
    auto model = MakeModel(config, std::move(weights), *backend_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    model_ = *std::move(model);
  }

  const Model& model() const { return *model_; }

 private:
  static size_t At(int64_t row, int64_t column) { return static_cast<size_t>(row * kModelDim + column); }

  struct Head {
    std::vector<float> q = std::vector<float>(kDim * kModelDim);
    std::vector<float> k = std::vector<float>(kDim * kModelDim);
    std::vector<float> v = std::vector<float>(kDim * kModelDim);
    std::vector<float> q_bias = std::vector<float>(kDim);
    std::vector<float> k_bias = std::vector<float>(kDim);
    int64_t writes_part = 2;
    float strength = 1;
  };

  // Attends to the token `distance` back, whatever stands there.
  void LookBack(Head& head, int64_t distance) const {
    constexpr float kSharpness = 9;
    constexpr int64_t kHalf = kDim / 4;
    for (int64_t i = 0; i < kHalf; ++i) {
      const double angle = frequencies_[static_cast<size_t>(i)] * static_cast<double>(distance);
      head.q_bias[static_cast<size_t>(i)] = kSharpness;
      head.k_bias[static_cast<size_t>(i)] = kSharpness * static_cast<float>(std::cos(angle));
      head.k_bias[static_cast<size_t>(i + kHalf)] = kSharpness * static_cast<float>(std::sin(angle));
    }
  }
  // Attends to tokens whose part `key_part` equals the query's part `query_part`.
  static void Match(Head& head, int64_t query_part, int64_t key_part) {
    constexpr float kSharpness = 1.4f;
    for (int64_t id = 0; id < kVocab; ++id) {
      head.q[At(kDim / 2 + id, query_part * kVocab + id)] = kSharpness;
      head.k[At(kDim / 2 + id, key_part * kVocab + id)] = kSharpness;
    }
  }
  // Reads a part of the tokens it attends to; a normed identity is about ten.
  static void Read(Head& head, int64_t part) {
    for (int64_t id = 0; id < kVocab; ++id) head.v[At(id, part * kVocab + id)] = 0.1f;
  }

  Head MakeHead(int64_t layer_idx, int64_t head_idx) const {
    Head head;
    Read(head, 0);
    if (layer_idx == 0 && head_idx == 0) {
      LookBack(head, 1);
      head.writes_part = 1;
    } else if (layer_idx * kHeads + head_idx == kEchoHead) {
      Match(head, 0, 0);
      head.v.assign(head.v.size(), 0.0f);
      Read(head, 1);
      head.strength = 2;
    } else if (layer_idx * kHeads + head_idx == kInductionHead) {
      Match(head, 0, 1);
      head.strength = 4;
    } else {
      LookBack(head, 1 + head_idx % 3);
      head.strength = 0.1f;
    }
    return head;
  }

  void AddLayer(ModelWeights& weights, int64_t layer_idx) {
    std::vector<float> q, k, v, q_bias, k_bias;
    std::vector<float> o(kModelDim * kHeads * kDim);
    for (int64_t head_idx = 0; head_idx < kHeads; ++head_idx) {
      const Head head = MakeHead(layer_idx, head_idx);
      q.insert(q.end(), head.q.begin(), head.q.end());
      k.insert(k.end(), head.k.begin(), head.k.end());
      v.insert(v.end(), head.v.begin(), head.v.end());
      q_bias.insert(q_bias.end(), head.q_bias.begin(), head.q_bias.end());
      k_bias.insert(k_bias.end(), head.k_bias.begin(), head.k_bias.end());
      for (int64_t id = 0; id < kVocab; ++id) {
        o[static_cast<size_t>((head.writes_part * kVocab + id) * kHeads * kDim + head_idx * kDim + id)] = head.strength;
      }
    }
    LayerWeights layer;
    layer.norm.weight = Ones(weights);
    layer.mlp_norm.weight = Ones(weights);
    layer.q = {Keep(weights, q, {kHeads * kDim, kModelDim}), Keep(weights, q_bias, {kHeads * kDim})};
    layer.k = {Keep(weights, k, {kHeads * kDim, kModelDim}), Keep(weights, k_bias, {kHeads * kDim})};
    layer.v.weight = Keep(weights, v, {kHeads * kDim, kModelDim});
    layer.o.weight = Keep(weights, o, {kModelDim, kHeads * kDim});
    const std::vector<float> none(4 * kModelDim);
    layer.gate.weight = Keep(weights, none, {4, kModelDim});
    layer.up.weight = Keep(weights, none, {4, kModelDim});
    layer.down.weight = Keep(weights, none, {kModelDim, 4});
    weights.layers.push_back(layer);
  }

  static ConstTensorView Keep(ModelWeights& weights, const std::vector<float>& values, const Shape& shape) {
    auto memory = std::make_unique<std::byte[]>(values.size() * sizeof(float));
    std::memcpy(memory.get(), values.data(), values.size() * sizeof(float));
    const ConstTensorView view(memory.get(), DType::kF32, shape);
    weights.owned.push_back(std::move(memory));
    return view;
  }
  static ConstTensorView Ones(ModelWeights& weights) {
    return Keep(weights, std::vector<float>(kModelDim, 1.0f), {kModelDim});
  }

  std::unique_ptr<Backend> backend_;
  std::vector<double> frequencies_;
  std::unique_ptr<Model> model_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_PLANTED_MODEL_H_
