// config.json of every family: both generations of key names, defaults of absent keys, and what must be refused.
#include "model/load_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "model/families/config_reader.h"
#include "support/describe_config.h"
#include "support/golden.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pointwise;
using ::testing::StartsWith;

std::string GoldenPath(const std::string& name) {
  return SourcePath("tests/golden/tiny/" + name);
}

Json GoldenJson(const std::string& name, const std::string& file = "config.json") {
  const auto json = ReadJsonFile(GoldenPath(name) + "/" + file);
  EXPECT_TRUE(json.ok()) << json.status().message();
  return json.ok() ? *json : Json::object();
}

Result<ModelConfig> Parse(const Json& json) {
  return ParseModelConfig(json.dump(), "config");
}
Status ParseStatus(const Json& json) {
  return Parse(json).status();
}
ModelConfig MustParse(const Json& json) {
  const auto config = Parse(json);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig{};
}

TEST(LoadConfig, BothGenerationsOfKeyNamesGiveTheSameConfig) {
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    const auto now = ReadModelConfig(folder);
    const auto text = ReadFile(folder + "/config.v4.json");
    ASSERT_TRUE(now.ok() && text.ok()) << now.status().message() << text.status().message();
    const auto before = ParseModelConfig(*text, folder);
    ASSERT_TRUE(before.ok()) << before.status().message();
    EXPECT_EQ(Describe(*now), Describe(*before)) << folder;
    EXPECT_EQ(now->bos_id, 0) << folder;
    EXPECT_THAT(now->eos_ids, ElementsAre(1)) << folder;
  }
}

TEST(LoadConfig, TheBundledModel) {
  const auto config = ReadModelConfig(BundledModel());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_layers, 8);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->q_heads_per_kv_head(), 2);
  EXPECT_EQ(config->ropes.at(0).theta, 1e6);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_THAT(config->eos_ids, ElementsAre(1, 3));
}

TEST(LoadConfig, WhatEachFamilyIsMadeOf) {
  const ModelConfig gqa = MustParse(GoldenJson("llama-gqa"));
  EXPECT_EQ(gqa.head_dim, 32);
  EXPECT_EQ(gqa.num_kv_heads, 2);
  EXPECT_EQ(gqa.ropes.at(0).rotary_dims, 32);
  EXPECT_EQ(gqa.softmax_scale, 1.0 / std::sqrt(32.0));

  const ModelConfig llama3 = MustParse(GoldenJson("llama-rope-llama3"));
  EXPECT_EQ(llama3.ropes.at(0).scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(llama3.ropes.at(0).factor, 8.0);
  EXPECT_EQ(llama3.ropes.at(0).original_max_position, 64);
  EXPECT_EQ(MustParse(GoldenJson("llama-rope-linear")).ropes.at(0).scaling, RopeConfig::Scaling::kLinear);

  EXPECT_EQ(WindowOfAll(MustParse(GoldenJson("mistral-window"))), 16);
  EXPECT_EQ(WindowOfAll(MustParse(GoldenJson("mistral-gqa"))), std::nullopt);

  const ModelConfig qwen2 = MustParse(GoldenJson("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && qwen2.tied_embeddings);

  const ModelConfig neox = MustParse(GoldenJson("gpt_neox"));
  EXPECT_EQ(neox.ropes.at(0).rotary_dims, 8);
  EXPECT_EQ(neox.residual, ResidualKind::kParallelTwoNorms);
  EXPECT_EQ(neox.mlp, MlpKind::kGelu);
  EXPECT_TRUE(neox.qkv_bias && neox.o_bias && neox.mlp_bias && neox.norm_bias);

  const ModelConfig falcon = MustParse(GoldenJson("falcon-7b-style"));
  EXPECT_EQ(falcon.num_kv_heads, 1);  // multi_query wins over num_kv_heads 4
  EXPECT_EQ(falcon.residual, ResidualKind::kParallelSharedNorm);

  const ModelConfig mpt = MustParse(GoldenJson("mpt"));
  EXPECT_EQ(mpt.positions, PositionKind::kAlibi);
  EXPECT_THAT(mpt.alibi_slopes, ElementsAre(0.25f, 0.0625f, 0.015625f, 0.00390625f));
  EXPECT_EQ(mpt.ffn_dim, 256);
  EXPECT_FALSE(mpt.norm_bias);
}

TEST(LoadConfig, FalconLayouts) {
  Json json = GoldenJson("falcon-7b-style");
  json["new_decoder_architecture"] = true;
  json["num_kv_heads"] = 2;
  ModelConfig config = MustParse(json);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.residual, ResidualKind::kParallelTwoNorms);
  json["num_ln_in_parallel_attn"] = 1;
  EXPECT_EQ(MustParse(json).residual, ResidualKind::kParallelSharedNorm);

  json = GoldenJson("falcon-7b-style");  // RW
  json.update(Json{{"multi_query", false}, {"parallel_attn", false}, {"alibi", true}, {"bias", true}});
  config = MustParse(json);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.residual, ResidualKind::kSerial);
  EXPECT_TRUE(config.qkv_bias && config.o_bias && config.mlp_bias);
  // The bias joins before the scores are scaled by 1 / sqrt(16).
  EXPECT_THAT(config.alibi_slopes, ElementsAre(0.0625f, 0.015625f, 0.00390625f, 0.0009765625f));
  EXPECT_EQ(config.tied_embeddings, true);

  // The key names of its first published form.
  Json old = {{"model_type", "RefinedWebModel"},
              {"hidden_size", 64},
              {"n_layer", 2},
              {"n_head", 4},
              {"vocab_size", 384},
              {"multi_query", true}};
  config = MustParse(old);
  EXPECT_EQ(config.family, "falcon");
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_q_heads, 4);
}

TEST(LoadConfig, BaichuanTellsItsTwoModelsApart) {
  Json json = GoldenJson("llama-mha");
  json["model_type"] = "baichuan";
  json.erase("head_dim");
  EXPECT_EQ(MustParse(json).positions, PositionKind::kRope);
  json.erase("max_position_embeddings");
  EXPECT_THAT(ParseStatus(json).message(), HasSubstr("\"model_max_length\" is missing"));
  json["model_max_length"] = 512;
  const ModelConfig config = MustParse(json);
  EXPECT_EQ(config.positions, PositionKind::kAlibi);
  EXPECT_EQ(config.trained_length, 512);
  EXPECT_THAT(config.alibi_slopes, ElementsAre(0.25f, 0.0625f, 0.015625f, 0.00390625f));
  // The published 13B sizes are ALiBi whatever the length is called.
  json.update(Json{{"hidden_size", 5120}, {"num_attention_heads", 40}, {"num_key_value_heads", 40}});
  json.erase("model_max_length");
  json["max_position_embeddings"] = 4096;
  EXPECT_EQ(MustParse(json).positions, PositionKind::kAlibi);
}

TEST(LoadConfig, MptOptions) {
  Json json = GoldenJson("mpt");
  Json& attention = json["attn_config"];
  attention.update(Json{{"clip_qkv", 0.75}, {"softmax_scale", 0.5}, {"alibi_bias_max", 16}});
  json.update(Json{{"expansion_ratio", 2.5}, {"no_bias", false}});
  ModelConfig config = MustParse(json);
  EXPECT_EQ(config.qkv_clip, 0.75);
  EXPECT_EQ(config.softmax_scale, 0.5);
  EXPECT_EQ(config.ffn_dim, 160);
  EXPECT_EQ(config.alibi_slopes[0], 0.0625f);
  EXPECT_TRUE(config.norm_bias && config.qkv_bias && config.o_bias && config.mlp_bias);

  attention["attn_type"] = "multiquery_attention";
  EXPECT_EQ(MustParse(json).num_kv_heads, 1);
  attention["attn_type"] = "grouped_query_attention";
  EXPECT_THAT(ParseStatus(json).message(), HasSubstr("\"kv_n_heads\" is missing"));
  attention["kv_n_heads"] = 2;
  EXPECT_EQ(MustParse(json).num_kv_heads, 2);
  attention["kv_n_heads"] = 3;
  EXPECT_THAT(ParseStatus(json).message(), HasSubstr("4 query heads are not a multiple of 3"));

  json = GoldenJson("mpt");
  json.update(Json{{"norm_type", "rmsnorm"}, {"no_bias", false}});
  config = MustParse(json);
  EXPECT_EQ(config.norm, NormKind::kRms);
  EXPECT_FALSE(config.norm_bias);
  json.erase("attn_config");
  EXPECT_EQ(MustParse(json).alibi_slopes.size(), 4u);
}

// What the Hugging Face config classes assume for absent keys.
TEST(LoadConfig, DefaultsOfAbsentKeys) {
  EXPECT_EQ(
      Describe(MustParse({{"model_type", "llama"}})),
      "llama L32 E4096 F11008 Hq32 Hkv32 D128 V32000 length 2048 norm 0 1e-06 mlp 0 residual 0 tied false bias "
      "false false false false norms 0 0 caps 0 0 scales 1 1 positions 0 0 rope 128 10000 0 1 1 4 0 divisors [] [] "
      "betas 32 1 true amplitude 1 slopes [] scale 0.0883883 clip -1 rope 0 window -1 sinks false false bos 1 eos [2]");
  const ModelConfig mistral = MustParse({{"model_type", "mistral"}});
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(WindowOfAll(mistral), 4096);
  EXPECT_EQ(mistral.trained_length, 131072);
  const ModelConfig qwen2 = MustParse({{"model_type", "qwen2"}, {"num_attention_heads", 64}});
  EXPECT_EQ(qwen2.num_kv_heads, 32);
  EXPECT_EQ(WindowOfAll(qwen2), std::nullopt);
  EXPECT_EQ(qwen2.bos_id, std::nullopt);
  EXPECT_THAT(qwen2.eos_ids, IsEmpty());
  const ModelConfig neox = MustParse({{"model_type", "gpt_neox"}});
  EXPECT_EQ(neox.ropes.at(0).rotary_dims, 24);
  EXPECT_EQ(neox.residual, ResidualKind::kParallelTwoNorms);
  const ModelConfig falcon = MustParse({{"model_type", "falcon"}});
  EXPECT_EQ(falcon.ffn_dim, 4 * 4544);
  EXPECT_EQ(falcon.num_q_heads, 71);
  EXPECT_THAT(falcon.eos_ids, ElementsAre(11));
  const ModelConfig mpt = MustParse({{"model_type", "mpt"}});
  EXPECT_EQ(mpt.model_dim, 2048);
  EXPECT_EQ(mpt.ffn_dim, 8192);
  // null is none, and not the default, where the two differ.
  EXPECT_EQ(WindowOfAll(MustParse({{"model_type", "mistral"}, {"sliding_window", nullptr}})), std::nullopt);
  EXPECT_EQ(MustParse({{"model_type", "mistral"}, {"num_key_value_heads", nullptr}}).num_kv_heads, 32);
  EXPECT_THAT(MustParse({{"model_type", "llama"}, {"eos_token_id", nullptr}}).eos_ids, IsEmpty());
  EXPECT_THAT(MustParse({{"model_type", "llama"}, {"eos_token_id", -1}}).eos_ids, IsEmpty());
}

TEST(LoadConfig, LayersThatCannotBeAreRefused) {
  const ModelConfig good = MustParse(GoldenJson("llama-mha"));
  const auto error = [&](const auto& change) {
    ModelConfig config = good;
    change(config);
    return ValidateConfig(config, "c").message();
  };
  EXPECT_EQ(error([](ModelConfig&) {}), "");
  EXPECT_EQ(error([](ModelConfig& c) { c.layers[1].rope = std::nullopt; }), "");
  EXPECT_EQ(error([](ModelConfig& c) { c.layers.pop_back(); }), "c: windows and positions of 1 layers, expected 2");
  EXPECT_EQ(error([](ModelConfig& c) { c.layers[1].window = 0; }),
            "c: layer 1: sliding window is 0, expected at least 1");
  EXPECT_EQ(error([](ModelConfig& c) { c.layers[1].rope = 1; }), "c: layer 1: rotary embedding 1 of 1");
  EXPECT_EQ(error([](ModelConfig& c) { c.layers[0].rope = -1; }), "c: layer 0: rotary embedding -1 of 1");
  EXPECT_EQ(error([](ModelConfig& c) {
              c.ropes.push_back(c.ropes[0]);
              c.ropes[1].theta = 0;
            }),
            "c: rope theta is 0, expected more than 1 and up to 1e+18");
  ModelConfig alibi = MustParse(GoldenJson("mpt"));
  alibi.ropes = good.ropes;
  EXPECT_EQ(ValidateConfig(alibi, "c").message(), "c: both ALiBi and a rotary embedding, expected one of them");
  Json json = GoldenJson("llama-mha");
  json["num_hidden_layers"] = 1'000'000'000;
  EXPECT_THAT(ParseStatus(json).message(), HasSubstr("layers is 1000000000, expected 1 to 4096"));
}

TEST(LoadConfig, RopeUnderItsManyNames) {
  Json json = GoldenJson("llama-mha", "config.v4.json");
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  EXPECT_EQ(MustParse(json).ropes.at(0).scaling, RopeConfig::Scaling::kLinear);
  json["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  EXPECT_EQ(MustParse(json).ropes.at(0).scaling, RopeConfig::Scaling::kDynamicNtk);
  EXPECT_EQ(MustParse(json).ropes.at(0).factor, 4.0);
  json["rope_scaling"] = Json::object();
  EXPECT_EQ(MustParse(json).ropes.at(0).scaling, RopeConfig::Scaling::kNone);
  // Without its own length, llama3 scales from the trained one.
  json["rope_scaling"] = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}, {"rope_theta", 5e5}};
  EXPECT_EQ(MustParse(json).ropes.at(0).original_max_position, 512);
  EXPECT_EQ(MustParse(json).ropes.at(0).theta, 5e5);
  json["original_max_position_embeddings"] = 128;
  EXPECT_EQ(MustParse(json).ropes.at(0).original_max_position, 128);
}

// -1 where a layer has none.
std::vector<int64_t> Windows(const ModelConfig& config) {
  std::vector<int64_t> windows;
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window.value_or(-1));
  return windows;
}

// As Hugging Face's Qwen2Config: from max_window_layers on, unless layer_types says which.
TEST(LoadConfig, QwenWindowsAreOfTheUpperLayers) {
  Json json = GoldenJson("qwen2", "config.v4.json");
  json.update(Json{{"use_sliding_window", true}, {"sliding_window", 16}});
  EXPECT_EQ(WindowOfAll(MustParse(json)), std::nullopt);  // max_window_layers 28 of 2 layers
  json["max_window_layers"] = 0;
  EXPECT_EQ(WindowOfAll(MustParse(json)), 16);
  json["max_window_layers"] = 1;
  EXPECT_THAT(Windows(MustParse(json)), ElementsAre(-1, 16));
  json["num_hidden_layers"] = 30;
  json.erase("max_window_layers");
  EXPECT_EQ(Windows(MustParse(json))[27], -1);
  EXPECT_EQ(Windows(MustParse(json))[28], 16);
  EXPECT_EQ(MustParse(json).CommonLayer(), std::nullopt);
  json["num_hidden_layers"] = 2;
  json["max_window_layers"] = 1;
  json["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(WindowOfAll(MustParse(json)), 16);
  json["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(WindowOfAll(MustParse(json)), std::nullopt);
  json["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_THAT(Windows(MustParse(json)), ElementsAre(16, -1));
  Json mistral = GoldenJson("mistral-window");
  mistral["layer_types"] = json["layer_types"];
  EXPECT_THAT(Windows(MustParse(mistral)), ElementsAre(16, -1));
  Json llama = GoldenJson("llama-mha");
  llama["layer_types"] = json["layer_types"];
  EXPECT_THAT(ParseStatus(llama).message(), HasSubstr("say sliding attention, but there is no window"));
  json["layer_types"] = {"full_attention"};
  EXPECT_EQ(ParseStatus(json).code(), StatusCode::kInvalidInput);
  json["use_sliding_window"] = false;
  json["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_THAT(ParseStatus(json).message(), HasSubstr("no window"));
}

struct Refusal {
  const char* base;
  const char* patch;  // merged into the config
  const char* expected;
};

TEST(LoadConfig, UnsupportedOptionsAreRefusedByName) {
  const Refusal refusals[] = {
      {"llama-mha", R"({"model_type": "no_such"})", "\"no_such\" is not supported, expected one of: llama"},
      {"llama-mha", R"({"rope_parameters": {"rope_type": "no_such"}})", "rope type \"no_such\" is not supported"},
      {"phi3", R"({"rope_parameters": {"short_mscale": 1.1}})", "option \"short_mscale\""},
      {"gemma2", R"({"use_bidirectional_attention": true})", "\"use_bidirectional_attention\": true"},
      {"gemma2", R"({"hidden_activation": "gelu"})", "\"hidden_activation\" is \"gelu\""},
      {"gpt2", R"({"scale_attn_by_inverse_layer_idx": true})", "\"scale_attn_by_inverse_layer_idx\": true"},
      {"llama-mha", R"({"rope_parameters": {"mrope_section": [1]}})", "\"mrope_section\""},
      {"llama-mha", R"({"rope_parameters": {"full_attention": {"rope_type": "linear"}}})", "\"full_attention\""},
      {"llama-mha", R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", "partial_rotary_factor"},
      {"llama-mha", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor"},
      {"llama-mha", R"({"hidden_act": "gelu"})", "\"hidden_act\" is \"gelu\", expected one of: silu"},
      {"llama-mha", R"({"quantization_config": {"quant_method": "no_such"}})",
       "\"quantization_config.quant_method\" is \"no_such\""},
      {"llama-mha", R"({"layer_types": ["full_attention", "chunked_attention"]})", "chunked_attention"},
      {"mistral-gqa", R"({"attention_bias": true})", "\"attention_bias\""},
      {"qwen2", R"({"use_mrope": true})", "\"use_mrope\""},
      {"gpt_neox", R"({"hidden_act": "quick_gelu"})", "\"quick_gelu\""},
      {"gpt_neox", R"({"attention_sinks": true})", "\"attention_sinks\""},
      {"falcon-7b-style", R"({"activation": "relu"})", "\"relu\""},
      {"falcon-7b-style", R"({"multi_query": false, "num_kv_heads": 2})", "\"num_kv_heads\" is 2"},
      {"falcon-7b-style", R"({"num_ln_in_parallel_attn": 2})", "2 norms"},
      {"falcon-7b-style", R"({"new_decoder_architecture": true, "parallel_attn": false})", "parallel_attn"},
      {"mpt", R"({"attn_config": {"alibi": false}})", "\"alibi\": false"},
      {"mpt", R"({"attn_config": {"qk_ln": true}})", "\"qk_ln\": true"},
      {"mpt", R"({"attn_config": {"prefix_lm": true}})", "\"prefix_lm\": true"},
      {"mpt", R"({"attn_config": {"rope": true}})", "\"rope\": true"},
      {"mpt", R"({"attn_config": {"attn_uses_sequence_id": true}})", "\"attn_uses_sequence_id\""},
      {"mpt", R"({"attn_config": {"sliding_window_size": 64}})", "\"sliding_window_size\""},
      {"mpt", R"({"attn_config": {"attn_type": "other"}})", "\"other\""},
      {"mpt", R"({"logit_scale": "inv_sqrt_d_model"})", "\"logit_scale\""},
      {"mpt", R"({"norm_type": "triton_rmsnorm"})", "\"triton_rmsnorm\""},
      {"mpt", R"({"ffn_config": {"ffn_type": "mptglu"}})", "\"mptglu\""},
  };
  for (const auto& [base, patch, expected] : refusals) {
    Json json = GoldenJson(base);
    json.merge_patch(Json::parse(patch));
    const Status status = ParseStatus(json);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << patch << ": " << status.message();
    EXPECT_THAT(status.message(), HasSubstr(expected)) << patch;
  }
}

TEST(LoadConfig, WrongValuesAreRefusedByName) {
  const Refusal refusals[] = {
      {"llama-mha", R"({"model_type": 5})", "\"model_type\" is 5"},
      {"llama-mha", R"({"model_type": null})", "\"model_type\" is missing"},
      {"llama-mha", R"({"hidden_size": -64})", "\"hidden_size\" is -64, expected 1 to"},
      {"llama-mha", R"({"hidden_size": 65, "head_dim": null})", "not a multiple of \"num_attention_heads\" 4"},
      {"llama-mha", R"({"hidden_size": 2097152, "head_dim": 16})", "model dim is 2097152"},
      {"llama-mha", R"({"num_attention_heads": 0})", "\"num_attention_heads\" is 0"},
      {"llama-mha", R"({"num_attention_heads": 1000000000})", "\"num_attention_heads\" is 1000000000"},
      {"llama-mha", R"({"num_key_value_heads": 3})", "4 query heads are not a multiple of 3"},
      {"llama-mha", R"({"num_hidden_layers": "2"})", "\"num_hidden_layers\" is \"2\""},
      {"llama-mha", R"({"num_hidden_layers": 2.5})", "\"num_hidden_layers\" is 2.5"},
      {"llama-mha", R"({"vocab_size": 18446744073709551615})", "\"vocab_size\""},
      {"llama-mha", R"({"head_dim": 15})", "15 rotary dimensions"},
      {"llama-mha", R"({"rms_norm_eps": -1})", "norm epsilon is -1"},
      {"llama-mha", R"({"rms_norm_eps": "tiny"})", "\"rms_norm_eps\""},
      {"llama-mha", R"({"attention_bias": 1})", "\"attention_bias\" is 1"},
      {"llama-mha", R"({"bos_token_id": 384})", "\"bos_token_id\" has 384, expected a token id below 384"},
      {"llama-mha", R"({"bos_token_id": 4294967296})", "\"bos_token_id\""},
      {"llama-mha", R"({"eos_token_id": [1, -2]})", "\"eos_token_id\" has -2"},
      {"llama-mha", R"({"eos_token_id": [1, "x"]})", "\"eos_token_id\" has \"x\""},
      {"llama-mha", R"({"eos_token_id": {"id": 1}})", "\"eos_token_id\""},
      {"llama-mha", R"({"zero_sink": true, "attention_sinks": true})", "both a zero sink and learned"},
      {"llama-mha", R"({"rope_parameters": {"rope_theta": 0}})", "rope theta is 0"},
      {"llama-mha", R"({"rope_parameters": [1]})", "\"rope_parameters\""},
      {"llama-mha", R"({"rope_parameters": {"rope_type": "linear"}})", "\"factor\" is missing"},
      {"llama-mha", R"({"rope_parameters": {"rope_type": "linear", "factor": 0.5}})", "\"factor\" is 0.5"},
      {"llama-mha", R"({"rope_parameters": {"rope_type": 3}})", "\"rope_type\" is 3"},
      {"llama-rope-llama3", R"({"rope_parameters": {"low_freq_factor": 4}})", "low_freq_factor 4"},
      {"mistral-window", R"({"sliding_window": 0})", "\"sliding_window\" is 0"},
      {"mistral-gqa", R"({"layer_types": ["full_attention", "sliding_attention"]})", "there is no window"},
      {"gemma2", R"({"layer_types": ["full_attention"]})", "\"layer_types\" is not a list of 2"},
      {"gemma2", R"({"attn_logit_softcapping": 0})", "\"attn_logit_softcapping\" is 0, expected more than 0"},
      {"gemma3", R"({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": null}}})", "\"factor\""},
      {"phi3", R"({"rope_parameters": {"short_factor": null}})", "\"short_factor\" is missing"},
      {"phi3", R"({"rope_parameters": {"long_factor": [1, 2]}})", "\"long_factor\" has 2 numbers, expected one for"},
      {"phi3", R"({"rope_parameters": {"long_factor": [1, 2, 3, 0]}})", "has the divisor 0"},
      {"llama-yarn", R"({"rope_parameters": {"beta_fast": 0}})", "rope beta_fast is 0"},
      {"llama-yarn", R"({"rope_parameters": {"attention_factor": 0}})", "rope amplitude is 0"},
      {"granite", R"({"residual_multiplier": 0})", "\"residual_multiplier\" is 0, expected more than 0"},
      {"cohere", R"({"logit_scale": 1e300})", "logit scale is 1e+300"},
      {"smollm3", R"({"no_rope_layers": [1]})", "\"no_rope_layers\" has 1 entries, expected one for each of 2"},
      {"qwen2", R"({"max_window_layers": -1})", "\"max_window_layers\" is -1"},
      {"gpt_neox", R"({"rope_parameters": {"partial_rotary_factor": 1.5}})", "1.5 of each head"},
      {"gpt_neox", R"({"rope_parameters": {"partial_rotary_factor": 0.01}})", "0 rotary dimensions"},
      {"falcon-7b-style", R"({"num_ln_in_parallel_attn": 3})", "\"num_ln_in_parallel_attn\" is 3"},
      {"mpt", R"({"expansion_ratio": 1e300})", "\"expansion_ratio\""},
      {"mpt", R"({"expansion_ratio": -4})", "\"expansion_ratio\""},
      {"mpt", R"({"attn_config": {"clip_qkv": -1}})", "\"clip_qkv\" is -1"},
      {"mpt", R"({"attn_config": {"clip_qkv": 1e-300}})", "limit of queries, keys and values is 1e-300"},
      {"mpt", R"({"attn_config": {"clip_qkv": 1e300}})", "limit of queries, keys and values is 1e+300"},
      {"mpt", R"({"attn_config": {"softmax_scale": 0}})", "softmax scale is 0, expected 1e-06 to 1000"},
      {"mpt", R"({"attn_config": {"softmax_scale": 1e300}})", "softmax scale is 1e+300"},
      {"mpt", R"({"attn_config": {"softmax_scale": 1e-300}})", "softmax scale is 1e-300"},
      {"mpt", R"({"attn_config": {"alibi_bias_max": 1e300}})", "\"alibi_bias_max\" is 1e+300"},
      {"mpt", R"({"layer_norm_epsilon": 1e308})", "norm epsilon is 1e+308, expected 0 to 1"},
      {"llama-mha", R"({"rope_parameters": {"rope_theta": 1e300}})", "rope theta is 1e+300"},
      {"llama-mha", R"({"rope_parameters": {"rope_type": "linear", "factor": 1e300}})", "rope factor is 1e+300"},
      {"llama-rope-llama3", R"({"rope_parameters": {"high_freq_factor": 1e300}})", "high_freq_factor is 1e+300"},
      {"mpt", R"({"attn_config": {"alibi_bias_max": 0}})", "\"alibi_bias_max\" is 0"},
      {"mpt", R"({"attn_config": 5})", "\"attn_config\""},
  };
  for (const auto& [base, patch, expected] : refusals) {
    Json json = GoldenJson(base);
    json.merge_patch(Json::parse(patch));
    const Status status = ParseStatus(json);
    EXPECT_EQ(status.code(), StatusCode::kInvalidInput) << patch << ": " << status.message();
    EXPECT_THAT(status.message(), HasSubstr(expected)) << patch;
    EXPECT_THAT(status.message(), StartsWith("config: ")) << patch;
  }
}

// The second file that names them: Llama 3's <|eot_id|> stands there alone.
TEST(LoadConfig, GenerationEndsAreTokenIds) {
  const ModelConfig config = MustParse(GoldenJson("llama-mha"));
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "headwise_generation_config";
  std::filesystem::create_directories(folder);
  const auto read = [&](const char* ids) -> Result<std::vector<int32_t>> {
    EXPECT_TRUE(
        WriteFileAtomically(folder / "generation_config.json", fmt::format(R"({{"eos_token_id": {}}})", ids)).ok());
    ModelConfig with_more = config;
    HW_RETURN_IF_ERROR(AddGenerationEosIds(folder.string(), with_more));
    return with_more.eos_ids;
  };
  EXPECT_THAT(*read("[1, 7, 383, 7]"), ElementsAre(1, 7, 383));
  EXPECT_THAT(*read("null"), ElementsAre(1));
  EXPECT_THAT(*read("-1"), ElementsAre(1));  // none
  for (const char* bad :
       {"384", "-5", "4294967303", "18446744073709551615", "7.0", "\"7\"", "[7, 384]", "[[7]]", "{}"}) {
    EXPECT_THAT(read(bad).status().message(),
                AllOf(HasSubstr("generation_config.json: \"eos_token_id\" has "), HasSubstr("a token id below 384")))
        << bad;
  }
  std::filesystem::remove_all(folder);
}

// Every key of every config, replaced by every kind of value: a config or an error that names its origin.
TEST(LoadConfig, NoValueOfAnyKeyIsMoreThanAnError) {
  const Json values[] = {nullptr,
                         true,
                         0,
                         -1,
                         1,
                         9223372036854775807,
                         18446744073709551615u,
                         0.5,
                         1e300,
                         -1e300,
                         "",
                         "x",
                         Json::array(),
                         Json::array({1}),
                         Json::object(),
                         Json::array({Json::array()}),
                         Json{{"x", 1}}};
  const auto try_all = [&](Json& json, Json& value) {
    const Json good = value;
    for (const Json& bad : values) {
      value = bad;
      const auto config = Parse(json);
      if (config.ok()) continue;
      EXPECT_THAT(config.status().message(), StartsWith("config: "));
    }
    value = good;
  };
  for (const std::string& folder : GoldenFolders(SourcePath("tests/golden/tiny"))) {
    for (const char* file : {"config.json", "config.v4.json"}) {
      Json json = GoldenJson(std::filesystem::path(folder).filename(), file);
      for (const auto& item : json.items()) {
        if (item.value().is_object()) {
          for (const auto& inner : item.value().items()) try_all(json, inner.value());
        }
        try_all(json, item.value());
      }
      EXPECT_TRUE(Parse(json).ok());
    }
  }
}

TEST(LoadConfig, ExpertsThatCannotBeAreNamed) {
  const auto error = [](const char* golden, const char* key, const Json& value) {
    Json json = GoldenJson(golden, "config.json");
    json[key] = value;
    return Parse(json).status().message();
  };
  EXPECT_THAT(error("mixtral", "num_experts_per_tok", 5),
              HasSubstr("\"num_experts_per_tok\" is 5, expected at most \"num_local_experts\", which is 4"));
  EXPECT_THAT(error("qwen3_moe", "num_experts", 1),
              HasSubstr("\"num_experts_per_tok\" is 2, expected at most \"num_experts\", which is 1"));
  EXPECT_THAT(error("qwen3_moe", "num_local_experts", 1),
              HasSubstr("\"num_experts_per_tok\" is 2, expected at most \"num_local_experts\", which is 1"));
  EXPECT_THAT(error("qwen3_moe", "mlp_only_layers", {2}),
              HasSubstr("\"mlp_only_layers\" has 2, expected layers below 2"));
  EXPECT_THAT(error("qwen2_moe", "decoder_sparse_step", 0), HasSubstr("\"decoder_sparse_step\" is 0"));
  EXPECT_THAT(error("olmoe", "clip_qkv", 8.0), HasSubstr("\"clip_qkv\" is there"));
  EXPECT_THAT(error("gpt_oss", "swiglu_limit", 9.0), HasSubstr("\"swiglu_limit\" is 9, expected 7"));
}

TEST(LoadConfig, FilesThatAreNoConfigAreNamed) {
  EXPECT_EQ(ReadModelConfig("/no/such/folder").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(ReadModelConfig("/no/such/folder").status().message(), HasSubstr("/no/such/folder/config.json"));
  EXPECT_THAT(ParseModelConfig("", "c").status().message(), HasSubstr("c: not valid JSON"));
  EXPECT_THAT(ParseModelConfig("[]", "c").status().message(), HasSubstr("expected an object"));
  EXPECT_THAT(ParseModelConfig(std::string(1 << 20, '['), "c").status().message(), HasSubstr("nested deeper"));
  EXPECT_THAT(ParseModelConfig("{\"model_type\": \"\xFF\"}", "c").status().message(), HasSubstr("not valid JSON"));
}

TEST(AlibiSlopes, PowersOfTwoAreTheSameInBothRecipes) {
  for (const int64_t heads : {1, 2, 4, 8, 16, 32, 64}) {
    EXPECT_EQ(MptAlibiSlopes(heads, 8.0), PaperAlibiSlopes(heads));
  }
  EXPECT_THAT(PaperAlibiSlopes(8),
              ElementsAre(1 / 2.f, 1 / 4.f, 1 / 8.f, 1 / 16.f, 1 / 32.f, 1 / 64.f, 1 / 128.f, 1 / 256.f));
}

TEST(AlibiSlopes, OtherNumbersOfHeads) {
  // 2^-(h + 1) for h = 1, 3, 5, 7, 0, 2.
  EXPECT_THAT(MptAlibiSlopes(6, 8.0), ElementsAre(1 / 4.f, 1 / 16.f, 1 / 64.f, 1 / 256.f, 1 / 2.f, 1 / 8.f));
  // The four of 4 heads, then every other one of 8.
  EXPECT_THAT(PaperAlibiSlopes(6), ElementsAre(1 / 4.f, 1 / 16.f, 1 / 64.f, 1 / 256.f, 1 / 2.f, 1 / 8.f));
  EXPECT_THAT(PaperAlibiSlopes(3), Pointwise(FloatEq(), {1 / 16.f, 1 / 256.f, 1 / 4.f}));
  // 40 heads, as Baichuan 13B: 32 of them, then every other one of 64.
  const std::vector<float> slopes = PaperAlibiSlopes(40);
  EXPECT_FLOAT_EQ(slopes[31], std::exp2(-8.0f));
  EXPECT_FLOAT_EQ(slopes[32], std::exp2(-1.0f / 8));
  EXPECT_FLOAT_EQ(slopes[39], std::exp2(-15.0f / 8));
}

}  // namespace
}  // namespace headwise
