#include "eval/random_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "base/rng.h"
#include "base/thread_pool.h"

namespace headwise {
namespace {

struct NamedShape {
  const char* name;
  int64_t num_layers;
  int64_t model_dim;
  int64_t ffn_dim;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t vocab_size;
  int64_t trained_length;
  double rope_theta;
  bool tied_embeddings;
};

constexpr NamedShape kShapes[] = {
    {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, true},
    {"llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 5e5, false},
    {"llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 1e4, false},
    {"headwise-17m", 8, 384, 1024, 8, 4, 64, 8192, 32768, 1e6, true},
};

// Random bits are drawn once and repeated. A prime, so that no two rows of a matrix are the same.
constexpr size_t kBlockElements = 524287;
constexpr size_t kPieceElements = size_t{4} << 20;
constexpr size_t kAlignment = 64;

// Hands out matrices from one allocation and fills them.
class RandomWeights {
 public:
  RandomWeights(int64_t num_elements, const RandomModelOptions& options)
      : pool_(options.num_threads), rng_(options.seed), units_(kBlockElements) {
    // Not value-initialised: these may be all bytes that the machine has.
    memory_.reset(new (std::nothrow) std::byte[static_cast<size_t>(num_elements) * 2 + kAlignment]);
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    next_ = reinterpret_cast<uint16_t*>((address + kAlignment - 1) / kAlignment * kAlignment);
    for (float& unit : units_) unit = static_cast<float>(2 * rng_.Uniform() - 1);
  }

  bool ok() const { return memory_ != nullptr; }
  std::unique_ptr<std::byte[]> TakeMemory() { return std::move(memory_); }

  // [num_rows, num_columns] bf16 with standard deviation `deviation`.
  ConstTensorView Matrix(int64_t num_rows, int64_t num_columns, double deviation) {
    const std::vector<uint16_t>& block = Block(deviation);
    const size_t start = rng_.Below(kBlockElements);
    const auto size = static_cast<size_t>(num_rows * num_columns);
    uint16_t* const to = next_;
    next_ += size;
    const auto num_pieces = static_cast<int64_t>((size + kPieceElements - 1) / kPieceElements);
    pool_.ParallelFor(num_pieces, [&](int64_t piece_idx, int) {
      const size_t piece = static_cast<size_t>(piece_idx) * kPieceElements;
      const size_t end = std::min(size, piece + kPieceElements);
      for (size_t at = piece; at < end;) {
        const size_t from = (start + at) % kBlockElements;
        const size_t count = std::min(end - at, kBlockElements - from);
        std::memcpy(to + at, block.data() + from, count * sizeof(uint16_t));
        at += count;
      }
    });
    return {to, DType::kBF16, Shape{num_rows, num_columns}};
  }

 private:
  const std::vector<uint16_t>& Block(double deviation) {
    std::vector<uint16_t>& block = blocks_[deviation];
    if (block.empty()) {
      // Uniform on [-1, 1] has variance 1/3.
      const auto scale = static_cast<float>(deviation * std::sqrt(3.0));
      block.resize(kBlockElements);
      std::transform(units_.begin(), units_.end(), block.begin(), [&](float unit) { return F32ToBF16(unit * scale); });
    }
    return block;
  }

  ThreadPool pool_;
  Rng rng_;
  std::vector<float> units_;
  std::map<double, std::vector<uint16_t>> blocks_;  // by deviation: a model has three or four
  std::unique_ptr<std::byte[]> memory_;
  uint16_t* next_ = nullptr;
};

ConstTensorView Ones(int64_t n, ModelWeights& weights) {
  auto memory = std::make_unique<std::byte[]>(static_cast<size_t>(n) * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(memory.get()), n, 1.0f);
  const ConstTensorView view(memory.get(), DType::kF32, Shape{n});
  weights.owned.push_back(std::move(memory));
  return view;
}

int64_t NumMatrixElements(const ModelConfig& config) {
  const int64_t attention = 2 * config.model_dim * (config.num_q_heads + config.num_kv_heads) * config.head_dim;
  const int64_t mlp = 3 * config.model_dim * config.ffn_dim;
  const int64_t table = config.vocab_size * config.model_dim;
  return config.num_layers * (attention + mlp) + table * (config.tied_embeddings ? 1 : 2);
}

}  // namespace

std::vector<std::string> NamedShapes() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

Result<ModelConfig> ConfigOfShape(const std::string& name) {
  const auto* const shape =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const NamedShape& s) { return s.name == name; });
  if (shape == std::end(kShapes)) {
    return Status::InvalidInput(
        fmt::format("shape \"{}\" is unknown, expected one of: {}", name, fmt::join(NamedShapes(), ", ")));
  }
  ModelConfig config;
  config.family = "llama";
  config.num_layers = shape->num_layers;
  config.model_dim = shape->model_dim;
  config.ffn_dim = shape->ffn_dim;
  config.num_q_heads = shape->num_q_heads;
  config.num_kv_heads = shape->num_kv_heads;
  config.head_dim = shape->head_dim;
  config.vocab_size = shape->vocab_size;
  config.trained_length = shape->trained_length;
  config.tied_embeddings = shape->tied_embeddings;
  config.softmax_scale = 1.0 / std::sqrt(static_cast<double>(shape->head_dim));
  config.rope.rotary_dims = shape->head_dim;
  config.rope.theta = shape->rope_theta;
  HW_RETURN_IF_ERROR(ValidateConfig(config, name));
  return config;
}

Result<std::unique_ptr<Model>> MakeRandomModel(const RandomModelOptions& options, Backend& backend) {
  HW_ASSIGN_OR_RETURN(ModelConfig config, ConfigOfShape(options.shape));
  const int64_t num_elements = NumMatrixElements(config);
  RandomWeights random(num_elements, options);
  if (!random.ok()) {
    return Status::OutOfMemory(
        fmt::format("{}: no memory for its weights of {} bytes", options.shape, 2 * num_elements));
  }
  const int64_t model_dim = config.model_dim;
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  // y = x W^T keeps the scale of x.
  const auto linear = [&](int64_t num_outputs, int64_t num_inputs) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(num_inputs));
    return LinearWeights{.weight = random.Matrix(num_outputs, num_inputs, deviation), .bias = {}};
  };
  ModelWeights weights;
  weights.embedding = random.Matrix(config.vocab_size, model_dim, 1.0 / std::sqrt(static_cast<double>(model_dim)));
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (LayerWeights& layer : weights.layers) {
    layer.norm.weight = Ones(model_dim, weights);
    layer.q = linear(q_dim, model_dim);
    layer.k = linear(kv_dim, model_dim);
    layer.v = linear(kv_dim, model_dim);
    layer.o = linear(model_dim, q_dim);
    layer.mlp_norm.weight = Ones(model_dim, weights);
    layer.gate = linear(config.ffn_dim, model_dim);
    layer.up = linear(config.ffn_dim, model_dim);
    layer.down = linear(model_dim, config.ffn_dim);
  }
  weights.final_norm.weight = Ones(model_dim, weights);
  if (config.tied_embeddings) {
    weights.output.weight = weights.embedding;
  } else {
    weights.output = linear(config.vocab_size, model_dim);
  }
  weights.owned.push_back(random.TakeMemory());
  return MakeModel(std::move(config), std::move(weights), backend);
}

}  // namespace headwise
