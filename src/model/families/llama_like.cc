#include "model/families/llama_like.h"

#include <fmt/format.h>

namespace headwise {

Status ReadLlamaLikeConfig(const JsonObject& config, const ShapeKeys& keys, const ShapeDefaults& defaults,
                           ModelConfig& model) {
  HW_RETURN_IF_ERROR(ReadShape(config, keys, defaults, model));
  model.norm = NormKind::kRms;
  HW_ASSIGN_OR_RETURN(model.norm_eps, config.DoubleOr("rms_norm_eps", 1e-6));
  HW_ASSIGN_OR_RETURN(model.mlp, ReadActivation(config, "hidden_act", "silu", GatedNames()));
  model.residual = ResidualKind::kSerial;
  HW_ASSIGN_OR_RETURN(model.learned_sinks, config.BoolOr("attention_sinks", false));
  return Status::Ok();
}

namespace {

enum class QkvTensors { kSeparate, kPacked };

Result<ModelWeights> ReadWeights(const ModelConfig& config, const WeightSource& source, QkvTensors qkv) {
  const auto bias = [](bool present) { return present ? Bias::kPresent : Bias::kNone; };
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  const int64_t q_rows = config.num_q_heads * config.head_dim;
  const int64_t kv_rows = config.num_kv_heads * config.head_dim;
  const int64_t model_dim = config.model_dim;
  HW_ASSIGN_OR_RETURN(weights.embedding, reader.Matrix("model.embed_tokens.weight", config.vocab_size, model_dim));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(reader.Norm(at + "input_layernorm", Bias::kNone, layer.norm));
    if (qkv == QkvTensors::kPacked) {
      HW_RETURN_IF_ERROR(reader.FusedQkv(at + "self_attn.W_pack", FusedOrder::kBlocks, bias(config.qkv_bias), layer));
    } else {
      HW_RETURN_IF_ERROR(reader.Linear(at + "self_attn.q_proj", q_rows, model_dim, bias(config.qkv_bias), layer.q));
      HW_RETURN_IF_ERROR(reader.Linear(at + "self_attn.k_proj", kv_rows, model_dim, bias(config.qkv_bias), layer.k));
      HW_RETURN_IF_ERROR(reader.Linear(at + "self_attn.v_proj", kv_rows, model_dim, bias(config.qkv_bias), layer.v));
    }
    HW_RETURN_IF_ERROR(reader.Linear(at + "self_attn.o_proj", model_dim, q_rows, bias(config.o_bias), layer.o));
    if (config.learned_sinks) {
      HW_ASSIGN_OR_RETURN(layer.sink_logits, reader.Vector(at + "self_attn.sinks", config.num_q_heads));
    }
    HW_RETURN_IF_ERROR(reader.Norm(at + "post_attention_layernorm", Bias::kNone, layer.mlp_norm));
    HW_RETURN_IF_ERROR(
        reader.Linear(at + "mlp.gate_proj", config.ffn_dim, model_dim, bias(config.mlp_bias), layer.gate));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.up_proj", config.ffn_dim, model_dim, bias(config.mlp_bias), layer.up));
    HW_RETURN_IF_ERROR(
        reader.Linear(at + "mlp.down_proj", model_dim, config.ffn_dim, bias(config.mlp_bias), layer.down));
    weights.layers.push_back(layer);
  }
  HW_RETURN_IF_ERROR(reader.Norm("model.norm", Bias::kNone, weights.final_norm));
  HW_RETURN_IF_ERROR(reader.Output("lm_head"));
  return weights;
}

}  // namespace

Result<ModelWeights> ReadLlamaWeights(const ModelConfig& config, const WeightSource& source) {
  return ReadWeights(config, source, QkvTensors::kSeparate);
}

Result<ModelWeights> ReadPackedLlamaWeights(const ModelConfig& config, const WeightSource& source) {
  return ReadWeights(config, source, QkvTensors::kPacked);
}

}  // namespace headwise
