#include "model/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>

namespace headwise {
namespace {

using Holds = GgufNameRow::Holds;
using Rows = GgufNameRow::Rows;

constexpr GgufNameRow kLlamaNames[] = {
    {"token_embd", "model.embed_tokens", Holds::kWeight},
    {"output_norm", "model.norm", Holds::kWeight},
    {"output", "lm_head", Holds::kWeight},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", Holds::kWeight},
    {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", Holds::kWeightAndBias, Rows::kQuery},
    {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", Holds::kWeightAndBias, Rows::kKey},
    {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
    {"blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks", Holds::kWhole},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm", Holds::kWeight},
    {"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
};

constexpr GgufNameRow kGptNeoxNames[] = {
    {"token_embd", "gpt_neox.embed_in", Holds::kWeight},
    {"output_norm", "gpt_neox.final_layer_norm"},
    {"output", "embed_out", Holds::kWeight},
    {"blk.{}.attn_norm", "gpt_neox.layers.{}.input_layernorm"},
    {"blk.{}.attn_qkv", "gpt_neox.layers.{}.attention.query_key_value", Holds::kWeightAndBias, Rows::kFusedQkv},
    {"blk.{}.attn_output", "gpt_neox.layers.{}.attention.dense"},
    {"blk.{}.ffn_norm", "gpt_neox.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_up", "gpt_neox.layers.{}.mlp.dense_h_to_4h"},
    {"blk.{}.ffn_down", "gpt_neox.layers.{}.mlp.dense_4h_to_h"},
};

// Of the layout with two norms, the MLP's is the one that keeps the name attn_norm.
constexpr GgufNameRow kFalconNames[] = {
    {"token_embd", "transformer.word_embeddings", Holds::kWeight},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head", Holds::kWeight},
    {"blk.{}.attn_norm", "transformer.h.{}.input_layernorm"},
    {"blk.{}.attn_norm", "transformer.h.{}.ln_mlp"},
    {"blk.{}.attn_norm_2", "transformer.h.{}.ln_attn"},
    {"blk.{}.attn_qkv", "transformer.h.{}.self_attention.query_key_value", Holds::kWeightAndBias, Rows::kFusedQkv},
    {"blk.{}.attn_output", "transformer.h.{}.self_attention.dense"},
    {"blk.{}.ffn_norm", "transformer.h.{}.post_attention_layernorm"},
    {"blk.{}.ffn_up", "transformer.h.{}.mlp.dense_h_to_4h"},
    {"blk.{}.ffn_down", "transformer.h.{}.mlp.dense_4h_to_h"},
};

constexpr GgufNameRow kMptNames[] = {
    {"token_embd", "transformer.wte", Holds::kWeight},
    {"output_norm", "transformer.norm_f"},
    {"output", "lm_head", Holds::kWeight},
    {"blk.{}.attn_norm", "transformer.blocks.{}.norm_1"},
    {"blk.{}.attn_qkv", "transformer.blocks.{}.attn.Wqkv", Holds::kWeightAndBias, Rows::kFusedQkv},
    {"blk.{}.attn_output", "transformer.blocks.{}.attn.out_proj"},
    {"blk.{}.ffn_norm", "transformer.blocks.{}.norm_2"},
    {"blk.{}.ffn_up", "transformer.blocks.{}.ffn.up_proj"},
    {"blk.{}.ffn_down", "transformer.blocks.{}.ffn.down_proj"},
};

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama", .family = "llama", .rope_rows = GgufArchitecture::RopeRows::kPairs, .names = kLlamaNames},
    {.name = "llama", .family = "mistral", .rope_rows = GgufArchitecture::RopeRows::kPairs, .names = kLlamaNames},
    {.name = "qwen2", .family = "qwen2", .names = kLlamaNames},
    {.name = "gptneox",
     .family = "gpt_neox",
     .fused_rows = GgufArchitecture::FusedRows::kGroups,
     .names = kGptNeoxNames},
    {.name = "falcon", .family = "falcon", .fused_rows = GgufArchitecture::FusedRows::kGroups, .names = kFalconNames},
    {.name = "mpt", .family = "mpt", .names = kMptNames},
};

// What `to` makes of a name that has the form of `from`: the layer moves over, and what may stand behind stays.
std::optional<std::string> Translate(std::string_view name, std::string_view from, std::string_view to, Holds holds) {
  constexpr std::string_view kLayer = "{}";
  const size_t at = from.find(kLayer);
  std::string_view layer;
  if (at != std::string_view::npos) {
    if (!name.starts_with(from.substr(0, at))) return std::nullopt;
    name.remove_prefix(at);
    layer = name.substr(0, std::min(name.find_first_not_of("0123456789"), name.size()));
    if (layer.empty() || (layer.size() > 1 && layer[0] == '0')) return std::nullopt;
    name.remove_prefix(layer.size());
    from.remove_prefix(at + kLayer.size());
  }
  if (!name.starts_with(from)) return std::nullopt;
  const std::string_view rest = name.substr(from.size());
  const bool fits =
      holds == Holds::kWhole ? rest.empty() : rest == ".weight" || (rest == ".bias" && holds == Holds::kWeightAndBias);
  if (!fits) return std::nullopt;
  std::string translated(to);
  if (const size_t place = to.find(kLayer); place != std::string_view::npos) {
    translated.replace(place, kLayer.size(), layer);
  }
  return translated.append(rest);
}

Rows RowsOf(const GgufArchitecture& architecture, std::string_view family_name) {
  for (const GgufNameRow& row : architecture.names) {
    if (Translate(family_name, row.family, row.file, row.holds)) return row.rows;
  }
  return Rows::kAny;
}

std::vector<int64_t> PairedRows(int64_t num_heads, int64_t head_dim) {
  std::vector<int64_t> rows;
  for (int64_t head_row = 0; head_row < num_heads * head_dim; head_row += head_dim) {
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      rows.push_back(head_row + i);
      rows.push_back(head_row + i + head_dim / 2);
    }
  }
  return rows;
}

// Groups are a KV head's query rows, its key rows, its value rows.
std::vector<int64_t> BlocksOfGroups(const ModelConfig& config) {
  const int64_t q_rows = config.q_heads_per_kv_head() * config.head_dim;
  const int64_t group_rows = q_rows + 2 * config.head_dim;
  std::vector<int64_t> rows;
  const auto add = [&](int64_t begin, int64_t count) {
    for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
      for (int64_t i = 0; i < count; ++i) rows.push_back(kv_head * group_rows + begin + i);
    }
  };
  add(0, q_rows);
  add(q_rows, config.head_dim);
  add(q_rows + config.head_dim, config.head_dim);
  return rows;
}

}  // namespace

std::span<const GgufArchitecture> GgufArchitectures() {
  return kArchitectures;
}

const GgufArchitecture* FindGgufArchitecture(std::string_view family) {
  const auto found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                  [&](const GgufArchitecture& row) { return row.family == family; });
  return found == std::end(kArchitectures) ? nullptr : found;
}

std::optional<std::string> GgufTensorName(const GgufArchitecture& architecture, std::string_view family_name) {
  for (const GgufNameRow& row : architecture.names) {
    if (auto name = Translate(family_name, row.family, row.file, row.holds)) return name;
  }
  return std::nullopt;
}

std::vector<std::string> FamilyTensorNames(const GgufArchitecture& architecture, std::string_view file_name) {
  std::vector<std::string> names;
  for (const GgufNameRow& row : architecture.names) {
    if (auto name = Translate(file_name, row.file, row.family, row.holds)) names.push_back(*std::move(name));
  }
  return names;
}

std::vector<int64_t> GgufRowOrder(const GgufArchitecture& architecture, const ModelConfig& config,
                                  std::string_view family_name) {
  const Rows rows = RowsOf(architecture, family_name);
  const bool paired = architecture.rope_rows == GgufArchitecture::RopeRows::kPairs;
  if (paired && rows == Rows::kQuery) return PairedRows(config.num_q_heads, config.head_dim);
  if (paired && rows == Rows::kKey) return PairedRows(config.num_kv_heads, config.head_dim);
  const bool grouped = architecture.fused_rows == GgufArchitecture::FusedRows::kGroups;
  if (grouped && rows == Rows::kFusedQkv) return BlocksOfGroups(config);
  return {};
}

}  // namespace headwise
