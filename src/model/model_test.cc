// How a model's weights come into a backend's memory.
#include "model/model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backend/all_backends.h"
#include "support/far_backend.h"
#include "support/golden.h"

namespace headwise {
namespace {

// A block of 1, 2, 3, ... that the weights own.
const float* OwnNumbers(size_t count, ModelWeights& weights) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  weights.owned.push_back(std::make_unique<std::byte[]>(count * sizeof(float)));
  std::memcpy(weights.owned.back().get(), numbers.data(), count * sizeof(float));
  return reinterpret_cast<const float*>(weights.owned.back().get());
}

ConstTensorView VectorOf(const float* data, int64_t size) {
  return {data, DType::kF32, {size}};
}

// Three biases in one block, as a fused bias that had to be widened leaves them, and a matrix of its own.
ModelWeights SmallWeights() {
  ModelWeights weights;
  LayerWeights& layer = weights.layers.emplace_back();
  const float* biases = OwnNumbers(6, weights);
  layer.q.bias = VectorOf(biases, 2);
  layer.k.bias = VectorOf(biases + 2, 2);
  layer.v.bias = VectorOf(biases + 4, 2);
  layer.q.weight = ConstTensorView(OwnNumbers(6, weights), DType::kF32, {2, 3});
  return weights;
}

std::vector<float> Read(Backend& backend, const void* from, size_t count) {
  std::vector<float> found(count);
  backend.device().CopyToHost(found.data(), from, count * sizeof(float));
  EXPECT_TRUE(backend.device().Wait().ok());
  return found;
}

TEST(MakeModel, WhatADeviceCopiesIsWholeAndLeavesTheHost) {
  FarBackend backend(*MakeBackend({.name = "ref"}));
  const auto model = MakeModel({}, SmallWeights(), backend);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const LayerWeights& layer = (*model)->weights.layers[0];
  EXPECT_EQ(Read(backend, layer.q.bias.data, 2), (std::vector<float>{1, 2}));
  EXPECT_EQ(Read(backend, layer.k.bias.data, 2), (std::vector<float>{3, 4}));
  EXPECT_EQ(Read(backend, layer.v.bias.data, 2), (std::vector<float>{5, 6}));
  EXPECT_EQ(Read(backend, layer.q.weight.planes[0], 6), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE((*model)->weights.owned.empty());
}

// Each of these asks for one thing that a backend may lack, and is taken by one that has it.
TEST(MakeModel, WhatABackendLacksIsRefusedByName) {
  struct Case {
    const char* name;
    Feature feature;
  };
  for (const auto& [name, feature] : {Case{"gemma2", Feature::kGatedGelu},
                                      {"gemma2", Feature::kNormAdded},
                                      {"gemma2", Feature::kScaledEmbedding},
                                      {"gemma2", Feature::kSoftCaps},
                                      {"olmo2", Feature::kNormAdded},
                                      {"granite", Feature::kScaledEmbedding},
                                      {"gpt2", Feature::kLearnedPositions},
                                      {"cohere", Feature::kNormsByHead},
                                      {"stablelm-parallel", Feature::kNormsByHead},
                                      {"mixtral", Feature::kExperts}}) {
    FarBackend backend(*MakeBackend({.name = "ref"}));
    const std::string folder = SourcePath(std::string("tests/golden/tiny/") + name);
    EXPECT_TRUE(LoadModel(folder, backend).ok()) << name;
    backend.Lack(feature);
    const Status status = LoadModel(folder, backend).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << name;
    EXPECT_NE(status.message().find(NameOf(feature)), std::string::npos) << name << ": " << status.message();
    EXPECT_TRUE(LoadModel(SourcePath("tests/golden/tiny/qwen3"), backend).ok()) << name;
  }
}

TEST(MakeModel, WhatIsReadWhereItIsStays) {
  const std::unique_ptr<Backend> backend = *MakeBackend({.name = "ref"});
  ModelWeights weights = SmallWeights();
  const void* const bias = weights.layers[0].v.bias.data;
  const auto model = MakeModel({}, std::move(weights), *backend);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->weights.layers[0].v.bias.data, bias);
  EXPECT_EQ((*model)->weights.owned.size(), 2u);
}

}  // namespace
}  // namespace headwise
