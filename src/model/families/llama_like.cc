#include "model/families/llama_like.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

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

Status ReadHeadNorm(const ModelConfig& config, const LlamaLikeTensors& tensors, const std::string& name,
                    int64_t num_heads, WeightReader& reader, NormWeights& norm) {
  using NormsByHead = LlamaLikeTensors::NormsByHead;
  if (config.qk_norm == QkNorm::kRows) return reader.Norm(name, {num_heads * config.head_dim}, Bias::kNone, norm);
  if (tensors.norms_by_head == NormsByHead::kTensorsApart) {
    return reader.NormOfHeads(name, {num_heads, config.head_dim}, norm);
  }
  const bool is_by_head = tensors.norms_by_head == NormsByHead::kOneTensor;
  return reader.Norm(name, is_by_head ? Shape{num_heads, config.head_dim} : Shape{config.head_dim}, Bias::kNone, norm);
}

Status ReadAttention(const ModelConfig& config, const LlamaLikeTensors& tensors, const std::string& at,
                     WeightReader& reader, LayerWeights& layer) {
  const int64_t q_rows = config.num_q_heads * config.head_dim;
  const Bias bias = BiasIf(config.qkv_bias);
  if (tensors.fused_qkv != nullptr) {
    HW_RETURN_IF_ERROR(reader.FusedQkv(at + tensors.fused_qkv, FusedOrder::kBlocks, bias, layer));
  } else {
    HW_RETURN_IF_ERROR(reader.SeparateQkv(at + "self_attn", bias, layer));
  }
  HW_RETURN_IF_ERROR(reader.Linear(at + "self_attn.o_proj", config.model_dim, q_rows, BiasIf(config.o_bias), layer.o));
  if (config.qk_norm != QkNorm::kNone) {
    HW_RETURN_IF_ERROR(ReadHeadNorm(config, tensors, at + tensors.q_norm, config.num_q_heads, reader, layer.q_norm));
    HW_RETURN_IF_ERROR(ReadHeadNorm(config, tensors, at + tensors.k_norm, config.num_kv_heads, reader, layer.k_norm));
  }
  if (config.learned_sinks) {
    HW_ASSIGN_OR_RETURN(layer.sink_logits, reader.Vector(at + "self_attn.sinks", config.num_q_heads));
  }
  return Status::Ok();
}

// The order of pairs is the checkpoint's own whatever rotates, so that layers without a rotation may keep it.
void Unpair(const ModelConfig& config, int64_t layer_idx, WeightReader& reader, LayerWeights& layer) {
  const std::optional<int64_t> rope = config.layer(layer_idx).rope;
  if (!rope) return;
  const int64_t rotary_dims = config.ropes[static_cast<size_t>(*rope)].rotary_dims;
  reader.UnpairHeads(config.num_q_heads, rotary_dims, layer.q);
  reader.UnpairHeads(config.num_kv_heads, rotary_dims, layer.k);
  if (config.qk_norm != QkNorm::kHeads) return;
  reader.UnpairNorm(rotary_dims, layer.q_norm);
  reader.UnpairNorm(rotary_dims, layer.k_norm);
}

Status ReadMlp(const ModelConfig& config, const LlamaLikeTensors& tensors, const std::string& at, WeightReader& reader,
               LayerWeights& layer) {
  const Bias bias = BiasIf(config.mlp_bias);
  if (tensors.fused_gate_up != nullptr) {
    HW_RETURN_IF_ERROR(
        reader.FusedPair(at + tensors.fused_gate_up, config.ffn_dim, config.model_dim, layer.gate, layer.up));
  } else {
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.gate_proj", config.ffn_dim, config.model_dim, bias, layer.gate));
    HW_RETURN_IF_ERROR(reader.Linear(at + "mlp.up_proj", config.ffn_dim, config.model_dim, bias, layer.up));
  }
  return reader.Linear(at + "mlp.down_proj", config.model_dim, config.ffn_dim, bias, layer.down);
}

Status ReadNorms(const ModelConfig& config, const LlamaLikeTensors& tensors, const std::string& at,
                 WeightReader& reader, LayerWeights& layer) {
  const Bias bias = BiasIf(config.norm_bias);
  const std::pair<const char*, NormWeights*> norms[] = {{tensors.norm, &layer.norm},
                                                        {tensors.post_norm, &layer.post_norm},
                                                        {tensors.mlp_norm, &layer.mlp_norm},
                                                        {tensors.mlp_post_norm, &layer.mlp_post_norm}};
  for (const auto& [name, norm] : norms) {
    if (name != nullptr) HW_RETURN_IF_ERROR(reader.Norm(at + name, bias, *norm));
  }
  return Status::Ok();
}

}  // namespace

Result<ModelWeights> ReadLlamaLikeWeights(const ModelConfig& config, const WeightSource& source,
                                          const LlamaLikeTensors& tensors) {
  ModelWeights weights;
  WeightReader reader(config, source, weights);
  if (tensors.norms_lack_one) reader.AddOneToNorms();
  const std::string prefix = tensors.prefix;
  HW_ASSIGN_OR_RETURN(weights.embedding,
                      reader.Matrix(prefix + "embed_tokens.weight", config.vocab_size, config.model_dim));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string at = fmt::format("{}layers.{}.", prefix, i);
    LayerWeights layer;
    HW_RETURN_IF_ERROR(ReadNorms(config, tensors, at, reader, layer));
    HW_RETURN_IF_ERROR(ReadAttention(config, tensors, at, reader, layer));
    if (tensors.rotary_order == RotaryOrder::kPairs) Unpair(config, i, reader, layer);
    if (config.layer(i).has_experts) {
      HW_RETURN_IF_ERROR(ReadExperts(config, tensors.experts, at, reader, layer));
    } else {
      HW_RETURN_IF_ERROR(ReadMlp(config, tensors, at, reader, layer));
    }
    weights.layers.push_back(std::move(layer));
  }
  HW_RETURN_IF_ERROR(reader.Norm(prefix + "norm", BiasIf(config.norm_bias), weights.final_norm));
  reader.Scale(weights.final_norm, config.logit_scale);
  HW_RETURN_IF_ERROR(reader.Output("lm_head"));
  return weights;
}

Result<ModelWeights> ReadLlamaWeights(const ModelConfig& config, const WeightSource& source) {
  return ReadLlamaLikeWeights(config, source, {});
}

}  // namespace headwise
