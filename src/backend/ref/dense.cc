// Everything but attention, as plain loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/choose_experts.h"
#include "backend/ref/ref_ops.h"
#include "tensor/blocks.h"

namespace headwise::ref {

void Embed(const EmbedArgs& args) {
  Validate(args);
  const int64_t dim = args.table.shape[1];
  for (size_t t = 0; t < args.ids.size(); ++t) {
    float* out = F32(args.out) + static_cast<int64_t>(t) * dim;
    ToF32(args.table.dtype, args.table.rows().Rows(EmbeddedId(args, t), 1).data, dim, out);
    for (int64_t e = 0; e < dim; ++e) out[e] *= args.scale;
    if (!args.positions.present()) continue;
    std::vector<float> position(static_cast<size_t>(dim));
    ToF32(args.positions.dtype, args.positions.rows().Rows(args.position_ids[t], 1).data, dim, position.data());
    for (int64_t e = 0; e < dim; ++e) out[e] += position[static_cast<size_t>(e)];
  }
}

void Norm(const NormArgs& args) {
  Validate(args);
  const int64_t dim = args.x.shape[1];
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    const float* x = F32(args.x) + t * dim;
    float* out = F32(args.out) + t * dim;
    double mean = 0;
    if (args.kind == NormArgs::Kind::kLayer) {
      for (int64_t e = 0; e < dim; ++e) mean += x[e];
      mean /= static_cast<double>(dim);
    }
    double variance = 0;
    for (int64_t e = 0; e < dim; ++e) variance += (x[e] - mean) * (x[e] - mean);
    const double inv = 1.0 / std::sqrt(variance / static_cast<double>(dim) + args.eps);
    const int64_t weight_row = t % args.num_weights() * dim;
    for (int64_t e = 0; e < dim; ++e) {
      const double bias = args.bias.present() ? F32(args.bias)[weight_row + e] : 0.0;
      const double normed = (x[e] - mean) * inv * F32(args.weight)[weight_row + e] + bias;
      out[e] = static_cast<float>(args.write == NormArgs::Write::kAdd ? out[e] + normed : normed);
    }
  }
}

void MatMul(const MatMulArgs& args) {
  Validate(args);
  const int64_t depth = args.x.shape[1];
  // kInt8 is an approximation of what is computed here without it.
  const auto operand = [&](float x) { return args.compute == Compute::kBF16 ? BF16ToF32(F32ToBF16(x)) : x; };
  std::vector<float> weights(static_cast<size_t>(depth));
  for (const MatMulPart& part : args.parts) {
    const int64_t num_outputs = part.weight.shape[0];
    for (int64_t n = 0; n < num_outputs; ++n) {
      ToF32(part.weight.dtype, part.weight.rows().Rows(n, 1).data, depth, weights.data());
      for (int64_t t = 0; t < args.x.shape[0]; ++t) {
        double sum = part.bias.present() ? F32(part.bias)[n] : 0.0;
        for (int64_t k = 0; k < depth; ++k) {
          sum += static_cast<double>(operand(F32(args.x)[t * depth + k])) * operand(weights[static_cast<size_t>(k)]);
        }
        float& out = F32(part.out)[t * num_outputs + n];
        out = static_cast<float>(args.write == MatMulArgs::Write::kAdd ? out + sum : sum);
      }
    }
  }
}

void Rope(const RopeArgs& args) {
  Validate(args);
  const int64_t half = args.angles.shape[1];
  const int64_t heads_per_row = args.num_heads / args.rows_per_token;
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const int64_t row = args.rows[static_cast<size_t>(t * args.rows_per_token + h / heads_per_row)];
      const float* angles = F32(args.angles) + row * half * 2;
      const int64_t offset = (t * args.num_heads + h) * args.head_dim;
      const float* x = F32(args.x) + offset;
      float* out = F32(args.out) + offset;
      for (int64_t i = 0; i < half; ++i) {
        const float cosine = angles[2 * i];
        const float sine = angles[2 * i + 1];
        const float low = x[i];
        const float high = x[i + half];
        out[i] = low * cosine - high * sine;
        out[i + half] = high * cosine + low * sine;
      }
      for (int64_t d = 2 * half; d < args.head_dim; ++d) out[d] = x[d];
    }
  }
}

void Activate(const ActivateArgs& args) {
  Validate(args);
  const auto gelu_tanh = [](double v) {
    return 0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v)));
  };
  for (int64_t i = 0; i < args.x.shape.num_elements(); ++i) {
    float& x = F32(args.x)[i];
    const double v = x;
    switch (args.kind) {
      case ActivateArgs::Kind::kGatedSilu: {
        const double gate = F32(args.gate)[i];
        x = static_cast<float>(gate / (1.0 + std::exp(-gate)) * v);
        break;
      }
      case ActivateArgs::Kind::kGatedGeluTanh:
        x = static_cast<float>(gelu_tanh(F32(args.gate)[i]) * v);
        break;
      case ActivateArgs::Kind::kGatedSiluClamped: {
        const auto limited = [](double number) {  // NaN stays NaN
          return number > kClampedSiluLimit ? kClampedSiluLimit : number;
        };
        const double gate = limited(F32(args.gate)[i]);
        const double up = -limited(-limited(v));
        x = static_cast<float>((up + 1.0) * gate / (1.0 + std::exp(-kClampedSiluSlope * gate)));
        break;
      }
      case ActivateArgs::Kind::kGelu:
        x = static_cast<float>(0.5 * v * (1.0 + std::erf(v / std::sqrt(2.0))));
        break;
      case ActivateArgs::Kind::kGeluTanh:
        x = static_cast<float>(gelu_tanh(v));
        break;
    }
  }
}

void Experts(const ExpertsArgs& args) {
  Validate(args);
  const int64_t dim = args.x.shape[1];
  const auto num_floats = [](int64_t size) { return std::vector<float>(static_cast<size_t>(size)); };
  std::vector<float> gate = num_floats(args.ffn_dim()), up = num_floats(args.ffn_dim()), down = num_floats(dim);
  const auto row_of = [](std::vector<float>& values) {
    return TensorView{values.data(), DType::kF32, {1, static_cast<int64_t>(values.size())}};
  };
  const auto multiply = [&](const ConstTensorView& x, const LinearWeights& linear, std::vector<float>& out) {
    const MatMulPart part{linear.weight, linear.bias, row_of(out)};
    MatMul({.x = x, .parts = {&part, 1}, .compute = args.compute});
  };
  std::vector<ChosenExpert> chosen(static_cast<size_t>(args.routing.num_chosen));
  std::vector<double> sums(static_cast<size_t>(dim));
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    ChooseExperts(args, t, chosen);
    std::fill(sums.begin(), sums.end(), 0.0);
    for (const ChosenExpert& each : chosen) {
      const ExpertWeights& expert = args.experts[static_cast<size_t>(each.expert)];
      multiply(args.x.Rows(t, 1), expert.gate, gate);
      multiply(args.x.Rows(t, 1), expert.up, up);
      Activate({.kind = args.activation, .gate = row_of(gate), .x = row_of(up)});
      multiply(row_of(up), expert.down, down);
      for (size_t e = 0; e < sums.size(); ++e) sums[e] += static_cast<double>(each.weight) * down[e];
    }
    for (int64_t e = 0; e < dim; ++e) {
      float& out = F32(args.out)[t * dim + e];
      const double sum = sums[static_cast<size_t>(e)];
      out = static_cast<float>(args.write == MatMulArgs::Write::kAdd ? out + sum : sum);
    }
  }
}

void GateRows(const GateRowsArgs& args) {
  Validate(args);
  const int64_t dim = args.x.shape[1];
  for (int64_t i = 0; i < args.x.shape.num_elements(); ++i) {
    float& x = F32(args.x)[i];
    x = static_cast<float>(x / (1.0 + std::exp(-static_cast<double>(F32(args.gate)[i / dim]))));
  }
}

void Clamp(const ClampArgs& args) {
  Validate(args);
  for (int64_t i = 0; i < args.x.shape.num_elements(); ++i) {
    float& x = F32(args.x)[i];
    x = x < -args.limit ? -args.limit : x > args.limit ? args.limit : x;  // NaN stays NaN
  }
}

void SoftCap(const SoftCapArgs& args) {
  Validate(args);
  const double cap = args.cap;
  for (int64_t i = 0; i < args.x.shape.num_elements(); ++i) {
    F32(args.x)[i] = static_cast<float>(cap * std::tanh(F32(args.x)[i] / cap));
  }
}

void GatherRows(const GatherRowsArgs& args) {
  Validate(args);
  const size_t row_floats = static_cast<size_t>(args.x.shape[1]);
  for (size_t r = 0; r < args.rows.size(); ++r) {
    std::memcpy(F32(args.out) + r * row_floats, F32(args.x) + static_cast<size_t>(args.rows[r]) * row_floats,
                row_floats * sizeof(float));
  }
}

}  // namespace headwise::ref
