#include "model/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace headwise {
namespace {

using Holds = GgufNameRow::Holds;
using Rows = GgufNameRow::Rows;
using Differs = GgufNameRow::Differs;

template <size_t... kSizes>
constexpr auto Joined(const std::array<GgufNameRow, kSizes>&... tables) {
  std::array<GgufNameRow, (kSizes + ...)> joined;
  size_t at = 0;
  const auto add = [&](const auto& table) {
    for (const GgufNameRow& row : table) joined[at++] = row;
  };
  (add(tables), ...);
  return joined;
}

// Parts of the many families whose checkpoints call things as Llama's do.
constexpr auto kEnds = std::to_array<GgufNameRow>({
    {"token_embd", "model.embed_tokens", Holds::kWeight},
    {"output_norm", "model.norm", Holds::kWeight},
    {"output", "lm_head", Holds::kWeight},
});
constexpr auto kEndsWithBias = std::to_array<GgufNameRow>({
    {"token_embd", "model.embed_tokens", Holds::kWeight},
    {"output_norm", "model.norm"},
    {"output", "lm_head", Holds::kWeight},
});
constexpr auto kAttention = std::to_array<GgufNameRow>({
    {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", Holds::kWeightAndBias, Rows::kQuery},
    {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", Holds::kWeightAndBias, Rows::kKey},
    {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
});
constexpr auto kSinks = std::to_array<GgufNameRow>({
    {"blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks", Holds::kWhole},
});
constexpr auto kHeadNorms = std::to_array<GgufNameRow>({
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm", Holds::kWeight},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm", Holds::kWeight},
});
constexpr auto kTwoNorms = std::to_array<GgufNameRow>({
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", Holds::kWeight},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm", Holds::kWeight},
});
constexpr auto kTwoNormsWithBias = std::to_array<GgufNameRow>({
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
});
constexpr auto kGatedMlp = std::to_array<GgufNameRow>({
    {"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
});
// Gate rows, then up rows, under the name of the latter.
constexpr auto kFusedMlp = std::to_array<GgufNameRow>({
    {"blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj", Holds::kWeight},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj", Holds::kWeight},
});

// Checkpoints have tensors of one expert or of two matrices: see GgufIsOfExpert.
constexpr auto kExperts = std::to_array<GgufNameRow>({
    {"blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate", Holds::kWeight},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.gate_proj"},
    {"blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.up_proj"},
    {"blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.down_proj"},
});
// Of the MLP that all tokens go through beside them.
constexpr auto kSharedExpert = std::to_array<GgufNameRow>({
    {"blk.{}.ffn_gate_inp_shexp", "model.layers.{}.mlp.shared_expert_gate", Holds::kWeight},
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_expert.gate_proj", Holds::kWeight},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_expert.up_proj", Holds::kWeight},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_expert.down_proj", Holds::kWeight},
});

constexpr auto kLlamaNames = Joined(kEnds, kTwoNorms, kAttention, kSinks, kGatedMlp);
constexpr auto kQwen3Names = Joined(kLlamaNames, kHeadNorms);

// A layer has the names of one layout of the family: that of transformers 5, in which experts are read, comes last.
constexpr auto kMixtralNames = Joined(
    kEnds, kTwoNorms, kAttention, kSinks,
    std::to_array<GgufNameRow>({{"blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.gate", Holds::kWeight}}),
    kExperts);
constexpr auto kQwen2MoeNames = Joined(kLlamaNames, kExperts, kSharedExpert);
constexpr auto kQwen3MoeNames = Joined(kQwen3Names, kExperts);
constexpr auto kOlmoeNames = Joined(kEnds, kTwoNorms, kAttention, kSinks, kHeadNorms, kExperts);
constexpr auto kGptOssNames =
    Joined(kEnds, kAttention, kSinks,
           std::to_array<GgufNameRow>({
               {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", Holds::kWeight},
               {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", Holds::kWeight},
               {"blk.{}.ffn_gate_inp", "model.layers.{}.mlp.router"},
           }),
           kExperts);
constexpr auto kGraniteMoeNames =
    Joined(kEnds, kTwoNorms, kAttention, kSinks,
           std::to_array<GgufNameRow>({
               {"blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.router.layer", Holds::kWeight},
               {"blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.experts.gate_proj", Holds::kWeight},
               {"blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.experts.up_proj", Holds::kWeight},
               {"blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.experts.down_proj", Holds::kWeight},
           }));

constexpr auto kGemma2Names = Joined(
    std::to_array<GgufNameRow>({
        {"token_embd", "model.embed_tokens", Holds::kWeight},
        {"output_norm", "model.norm", Holds::kWeight, Rows::kAny, Differs::kOneMore},
        {"output", "lm_head", Holds::kWeight},
        {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", Holds::kWeight, Rows::kAny, Differs::kOneMore},
        {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", Holds::kWeight, Rows::kAny,
         Differs::kOneMore},
        {"blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm", Holds::kWeight, Rows::kAny, Differs::kOneMore},
        {"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm", Holds::kWeight, Rows::kAny,
         Differs::kOneMore},
    }),
    kAttention, kGatedMlp);
constexpr auto kGemma3Names = Joined(
    kGemma2Names,
    std::to_array<GgufNameRow>({
        {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm", Holds::kWeight, Rows::kAny, Differs::kOneMore},
        {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm", Holds::kWeight, Rows::kAny, Differs::kOneMore},
    }));
// Of folders with a vision part.
constexpr std::pair<std::string_view, std::string_view> kGemma3Prefixes[] = {{"language_model.model.", "model."},
                                                                             {"model.language_model.", "model."}};

constexpr auto kPhi3Names = Joined(kEnds, kTwoNorms, kSinks, kFusedMlp,
                                   std::to_array<GgufNameRow>({
                                       {"blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj", Holds::kWeight},
                                       {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj", Holds::kWeight},
                                   }));

// Norms of heads, which no published model has, are named as those of other architectures.
constexpr auto kPhiNames = std::to_array<GgufNameRow>({
    {"token_embd", "model.embed_tokens", Holds::kWeight},
    {"output_norm", "model.final_layernorm"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", Holds::kWeightAndBias, Rows::kQuery},
    {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", Holds::kWeightAndBias, Rows::kKey},
    {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    {"blk.{}.attn_output", "model.layers.{}.self_attn.dense"},
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_layernorm"},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_layernorm"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.fc1"},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.fc2"},
});

constexpr auto kOlmo2Names =
    Joined(kEnds, kAttention, kSinks, kHeadNorms, kGatedMlp,
           std::to_array<GgufNameRow>({
               {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", Holds::kWeight},
               {"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm", Holds::kWeight},
           }));

constexpr auto kStarcoder2Names = Joined(kEndsWithBias, kTwoNormsWithBias, kAttention,
                                         std::to_array<GgufNameRow>({
                                             {"blk.{}.ffn_up", "model.layers.{}.mlp.c_fc"},
                                             {"blk.{}.ffn_down", "model.layers.{}.mlp.c_proj"},
                                         }));

constexpr auto kStableLmNames = Joined(kEndsWithBias, kTwoNormsWithBias, kAttention, kGatedMlp,
                                       std::to_array<GgufNameRow>({
                                           {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_layernorm.norms",
                                            Holds::kWeight, Rows::kAny, Differs::kHeadsInOne},
                                           {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_layernorm.norms",
                                            Holds::kWeight, Rows::kAny, Differs::kHeadsInOne},
                                       }));

constexpr auto kCohereNames =
    Joined(kEnds, kAttention, kHeadNorms, kGatedMlp,
           std::to_array<GgufNameRow>({{"blk.{}.attn_norm", "model.layers.{}.input_layernorm", Holds::kWeight}}));

constexpr auto kGlm4Names =
    Joined(kEnds, kTwoNorms, kAttention, kSinks, kFusedMlp,
           std::to_array<GgufNameRow>({
               {"blk.{}.post_attention_norm", "model.layers.{}.post_self_attn_layernorm", Holds::kWeight},
               {"blk.{}.post_ffw_norm", "model.layers.{}.post_mlp_layernorm", Holds::kWeight},
           }));

constexpr auto kGpt2Names = std::to_array<GgufNameRow>({
    {"token_embd", "wte", Holds::kWeight},
    {"position_embd", "wpe", Holds::kWeight},
    {"output_norm", "ln_f"},
    {"output", "lm_head", Holds::kWeight},
    {"blk.{}.attn_norm", "h.{}.ln_1"},
    {"blk.{}.attn_qkv", "h.{}.attn.c_attn", Holds::kWeightAndBias, Rows::kAny, Differs::kTransposed},
    {"blk.{}.attn_output", "h.{}.attn.c_proj", Holds::kWeightAndBias, Rows::kAny, Differs::kTransposed},
    {"blk.{}.ffn_norm", "h.{}.ln_2"},
    {"blk.{}.ffn_up", "h.{}.mlp.c_fc", Holds::kWeightAndBias, Rows::kAny, Differs::kTransposed},
    {"blk.{}.ffn_down", "h.{}.mlp.c_proj", Holds::kWeightAndBias, Rows::kAny, Differs::kTransposed},
});
constexpr std::pair<std::string_view, std::string_view> kGpt2Prefixes[] = {{"transformer.", ""}};

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

using RopeRows = GgufArchitecture::RopeRows;

// Converters pair the rows of those whose checkpoints have halves and whose readers turn neighbours. Cohere's and
// GLM-4's checkpoints have neighbours themselves.
constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama", .family = "llama", .rope_rows = RopeRows::kPairs, .names = kLlamaNames},
    {.name = "llama", .family = "mistral", .rope_rows = RopeRows::kPairs, .names = kLlamaNames, .window_period = 0},
    {.name = "llama", .family = "mixtral", .rope_rows = RopeRows::kPairs, .names = kMixtralNames, .window_period = 0},
    {.name = "qwen2", .family = "qwen2", .names = kLlamaNames, .window_period = 0},
    {.name = "qwen3", .family = "qwen3", .names = kQwen3Names, .window_period = 0},
    {.name = "gemma2", .family = "gemma2", .names = kGemma2Names, .window_period = 2},
    {.name = "gemma3", .family = "gemma3_text", .names = kGemma3Names, .window_period = 6, .prefixes = kGemma3Prefixes},
    {.name = "phi3", .family = "phi3", .names = kPhi3Names, .window_period = 0},
    {.name = "phi2", .family = "phi", .names = kPhiNames},
    {.name = "olmo2", .family = "olmo2", .names = kOlmo2Names},
    {.name = "granite", .family = "granite", .rope_rows = RopeRows::kPairs, .names = kLlamaNames},
    {.name = "smollm3",
     .family = "smollm3",
     .rope_rows = RopeRows::kPairs,
     .names = kLlamaNames,
     .window_period = 0,
     .unrotated_period = 4},
    {.name = "starcoder2", .family = "starcoder2", .names = kStarcoder2Names, .window_period = 0},
    {.name = "stablelm", .family = "stablelm", .names = kStableLmNames},
    {.name = "command-r", .family = "cohere", .names = kCohereNames},
    {.name = "glm4", .family = "glm4", .names = kGlm4Names},
    {.name = "gpt2", .family = "gpt2", .names = kGpt2Names, .prefixes = kGpt2Prefixes},
    {.name = "gptneox",
     .family = "gpt_neox",
     .fused_rows = GgufArchitecture::FusedRows::kGroups,
     .names = kGptNeoxNames},
    {.name = "falcon", .family = "falcon", .fused_rows = GgufArchitecture::FusedRows::kGroups, .names = kFalconNames},
    {.name = "mpt", .family = "mpt", .names = kMptNames},
    {.name = "qwen2moe", .family = "qwen2_moe", .names = kQwen2MoeNames, .window_period = 0},
    {.name = "qwen3moe", .family = "qwen3_moe", .names = kQwen3MoeNames, .window_period = 0},
    {.name = "olmoe", .family = "olmoe", .names = kOlmoeNames},
    {.name = "gpt-oss", .family = "gpt_oss", .names = kGptOssNames, .window_period = 2},
    {.name = "granitemoe", .family = "granitemoe", .rope_rows = RopeRows::kPairs, .names = kGraniteMoeNames},
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

// A tensor of a checkpoint, looked up.
struct Found {
  const GgufNameRow* row = nullptr;  // null: the architecture has none
  std::string file_name;
  std::optional<int64_t> head;  // whose part of the file's tensor it is
};

// Takes what names a head off `name`: "norms.3.weight" becomes "norms.weight", and 3 is given.
std::optional<int64_t> TakeHead(std::string& name) {
  const size_t last_dot = name.rfind('.');
  if (last_dot == std::string::npos || last_dot == 0) return std::nullopt;
  const size_t dot = name.rfind('.', last_dot - 1);
  if (dot == std::string::npos) return std::nullopt;
  const std::string number = name.substr(dot + 1, last_dot - dot - 1);
  int64_t head = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), head);
  if (error != std::errc() || head < 0 || fmt::to_string(head) != number) return std::nullopt;
  name.erase(dot, last_dot - dot);
  return head;
}

Found Find(const GgufArchitecture& architecture, std::string_view family_name) {
  std::string name(family_name);
  for (const auto& [prefix, usual] : architecture.prefixes) {
    if (!name.starts_with(prefix)) continue;
    name.replace(0, prefix.size(), usual);
    break;
  }
  std::string whole = name;
  const std::optional<int64_t> head = TakeHead(whole);
  for (const GgufNameRow& row : architecture.names) {
    const bool has_parts = head && row.differs == Differs::kHeadsInOne;
    auto file_name = Translate(has_parts ? whole : name, row.family, row.file, row.holds);
    if (file_name) return {&row, *std::move(file_name), has_parts ? head : std::nullopt};
  }
  return {};
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
  Found found = Find(architecture, family_name);
  if (found.row == nullptr) return std::nullopt;
  return std::move(found.file_name);
}

std::optional<int64_t> GgufHeadOf(const GgufArchitecture& architecture, std::string_view family_name) {
  return Find(architecture, family_name).head;
}

bool GgufIsOfExpert(std::string_view family_name) {
  return family_name.find(".experts.") != std::string_view::npos || family_name.ends_with(".input_linear.weight") ||
         family_name.ends_with(".output_linear.weight");
}

double GgufOffset(const GgufArchitecture& architecture, std::string_view family_name) {
  const Found found = Find(architecture, family_name);
  return found.row != nullptr && found.row->differs == Differs::kOneMore ? 1.0 : 0.0;
}

bool GgufIsTransposed(const GgufArchitecture& architecture, std::string_view family_name) {
  const Found found = Find(architecture, family_name);
  return found.row != nullptr && found.row->differs == Differs::kTransposed && family_name.ends_with(".weight");
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
  const Found found = Find(architecture, family_name);
  const Rows rows = found.row != nullptr ? found.row->rows : Rows::kAny;
  const bool paired = architecture.rope_rows == GgufArchitecture::RopeRows::kPairs;
  if (paired && rows == Rows::kQuery) return PairedRows(config.num_q_heads, config.head_dim);
  if (paired && rows == Rows::kKey) return PairedRows(config.num_kv_heads, config.head_dim);
  const bool grouped = architecture.fused_rows == GgufArchitecture::FusedRows::kGroups;
  if (grouped && rows == Rows::kFusedQkv) return BlocksOfGroups(config);
  return {};
}

}  // namespace headwise
