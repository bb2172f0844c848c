"""Cases of make_golden.py for the families of today: one row each, as small as its point allows, weights in bfloat16.

transformers computes the numbers. The mistake of a case is the same model without what the family is there for.
"""

import torch
import transformers

from float64_transformers import MakeRun, in_transformers
from golden_cases import COMMON, Case, transformers_case, v4_config, v5_config, with_config

SHAPE = COMMON | dict(vocab_size=64, hidden_size=32, intermediate_size=40, num_hidden_layers=2)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
TWO_HEADS = dict(num_attention_heads=2, num_key_value_heads=1)
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def replaced(config, part: str, value: float) -> MakeRun:
    """The model with every tensor whose name has `part` in it full of `value`."""

    def make_run(tensors):
        return in_transformers(config)({k: torch.full_like(t, value) if part in k else t for k, t in tensors.items()})

    return make_run


def old_config(config, **changes) -> dict:
    """The key names of transformers 4, where a share of the head that is rotated stands beside the scaling."""
    values = v4_config(config)
    rope = v5_config(config).get("rope_parameters") or {}
    if "partial_rotary_factor" in rope:
        values["partial_rotary_factor"] = rope["partial_rotary_factor"]
        if values.get("rope_scaling"):
            values["rope_scaling"].pop("partial_rotary_factor", None)
    return values | changes


def case(name: str, seed: int, what: str, config, mistake: MakeRun, **fields) -> Case:
    config_v4 = fields.pop("config_v4", None) or old_config(config)
    return transformers_case(
        name, what, seed, config, mistake, stored_as=torch.bfloat16, config_v4=config_v4, **fields
    )


def qwen3() -> Case:
    config = transformers.Qwen3Config(
        **SHAPE | HEADS | dict(head_dim=16, use_sliding_window=True, sliding_window=16, max_window_layers=1),
        rope_parameters=ROPE | {"rope_theta": 1000000.0},
    )
    what = "a norm of each head's q and k, head_dim 16 of 32 / 4; the second layer has a window of 16"
    return case("qwen3", 2001, what, config, replaced(config, "q_norm", 1.0))


def gemma2() -> Case:
    config = transformers.Gemma2Config(
        **SHAPE | HEADS | dict(head_dim=16, sliding_window=16, query_pre_attn_scalar=24, tie_word_embeddings=True),
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
        rope_parameters=ROPE,
    )
    what = "norms before and behind, weights less one; caps of scores and logits; windows of 16 in the first layer"
    return case("gemma2", 2018, what, config, in_transformers(with_config(config, attn_logit_softcapping=None)))


def gemma3() -> Case:
    scaled = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000000.0}
    config = transformers.Gemma3TextConfig(
        **SHAPE | HEADS | dict(head_dim=16, num_hidden_layers=3, sliding_window=16, query_pre_attn_scalar=24),
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": scaled, "sliding_attention": dict(ROPE)},
        tie_word_embeddings=True,
    )
    one_rope = with_config(config, rope_parameters={"full_attention": dict(ROPE), "sliding_attention": dict(ROPE)})
    values = v5_config(config)
    for key in ("rope_parameters", "layer_types", "dtype"):
        values.pop(key, None)
    values |= {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 3}
    values |= {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "torch_dtype": "float32"}
    what = "two layers with a window of 16 and a short rope, one that reads all with a long, scaled one; norms of q and k"
    return case("gemma3", 2035, what, config, in_transformers(one_rope), config_v4=values)


def _phi3(original: int, **changes):
    factors = {"short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.0, 1.5, 4.0, 9.0]}
    return transformers.Phi3Config(
        **SHAPE | HEADS | TWO_HEADS | dict(sliding_window=24, original_max_position_embeddings=original),
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5} | factors,
        **changes,
    )


def phi3() -> Case:
    config = _phi3(32)
    what = "fused projections; LongRoPE, half of each head rotated, texts longer than the original 32 tokens; window 24"
    unscaled = with_config(config, rope_parameters=ROPE | {"partial_rotary_factor": 0.5})
    return case("phi3", 2052, what, config, in_transformers(unscaled))


def phi3_short() -> Case:
    config = _phi3(256)
    what = "as phi3, but within the original 256 tokens: the other divisors, and the amplitude of 512 / 256"
    unscaled = with_config(config, rope_parameters=ROPE | {"partial_rotary_factor": 0.5})
    return case("phi3-short", 2069, what, config, in_transformers(unscaled))


def phi() -> Case:
    config = transformers.PhiConfig(
        **SHAPE | HEADS | dict(qk_layernorm=True),
        rope_parameters=ROPE | {"partial_rotary_factor": 0.5},
    )
    what = "attention and MLP on one norm, half of each head rotated, biases of everything, q and k normed by head"
    return case("phi", 2086, what, config, replaced(config, "q_layernorm.weight", 1.0))


def olmo2() -> Case:
    config = transformers.Olmo2Config(**SHAPE | HEADS, rope_parameters=ROPE)
    what = "norms behind attention and MLP alone, one norm over all heads of q and one of k"
    return case("olmo2", 2103, what, config, replaced(config, "post_attention_layernorm", 1.0))


def granite() -> Case:
    config = transformers.GraniteConfig(
        **SHAPE | HEADS,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        logits_scaling=0.5,
        rope_parameters=ROPE,
    )
    what = "multipliers of embeddings, residuals and scores; logits divided by 0.5"
    return case("granite", 2120, what, config, in_transformers(with_config(config, residual_multiplier=1.0)))


def starcoder2() -> Case:
    config = transformers.Starcoder2Config(
        **SHAPE | HEADS, sliding_window=16, tie_word_embeddings=True, rope_parameters=ROPE
    )
    what = "LayerNorm and biases, grouped heads, GELU by tanh, a window of 16 in all layers"
    return case("starcoder2", 2137, what, config, in_transformers(with_config(config, sliding_window=None)))


def stablelm() -> Case:
    config = transformers.StableLmConfig(
        **SHAPE | HEADS | TWO_HEADS, use_qkv_bias=True, rope_parameters=ROPE | {"partial_rotary_factor": 0.25}
    )
    what = "Llama's block with LayerNorm, a quarter of each head rotated, biases of q, k and v"
    whole = with_config(config, rope_parameters=ROPE | {"partial_rotary_factor": 1.0})
    return case("stablelm", 2154, what, config, in_transformers(whole))


def stablelm_parallel() -> Case:
    config = transformers.StableLmConfig(
        **SHAPE | HEADS,
        qk_layernorm=True,
        use_parallel_residual=True,
        rope_parameters=ROPE | {"partial_rotary_factor": 0.25},
    )
    what = "attention and MLP in parallel on one norm; a norm for every head of q and k, each a tensor of its own"
    return case("stablelm-parallel", 2171, what, config, replaced(config, "q_layernorm", 1.0))


def cohere() -> Case:
    config = transformers.CohereConfig(
        **SHAPE | HEADS, use_qk_norm=True, logit_scale=0.5, tie_word_embeddings=True, rope_parameters=ROPE
    )
    what = "attention and MLP on one LayerNorm without bias, pairs rotated, norms [H, D] of q and k, logits halved"
    return case("cohere", 2188, what, config, replaced(config, "q_norm", 1.0))


def smollm3() -> Case:
    config = transformers.SmolLM3Config(
        **SHAPE | HEADS, no_rope_layers=[1, 0], tie_word_embeddings=True, rope_parameters=ROPE | {"rope_theta": 2000000.0}
    )
    what = "the second layer knows no positions"
    return case("smollm3", 2205, what, config, in_transformers(with_config(config, no_rope_layers=[1, 1])))


def glm4() -> Case:
    config = transformers.Glm4Config(
        **SHAPE | HEADS, head_dim=16, rope_parameters=ROPE | {"partial_rotary_factor": 0.5}
    )
    what = "norms before and behind, pairs in half of each head rotated, gate and up fused, biases of q, k and v"
    whole = with_config(config, rope_parameters=ROPE | {"partial_rotary_factor": 1.0})
    return case("glm4", 2222, what, config, in_transformers(whole))


def gpt2() -> Case:
    config = transformers.GPT2Config(
        **COMMON | dict(vocab_size=64), n_embd=32, n_layer=2, n_head=4, n_positions=128, tie_word_embeddings=True
    )
    what = "learned positions, matrices [in, out], q, k and v fused"
    return case("gpt2", 2239, what, config, replaced(config, "wpe", 0.0))


def llama_yarn() -> Case:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    config = transformers.LlamaConfig(**SHAPE | HEADS | dict(head_dim=16), rope_parameters=rope)
    what = "YaRN: 64 tokens stretched by 4, with its amplitude"
    return case("llama-yarn", 2256, what, config, in_transformers(with_config(config, rope_parameters=dict(ROPE))))


FAMILY_CASES = {
    "qwen3": qwen3,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "phi3": phi3,
    "phi3-short": phi3_short,
    "phi": phi,
    "olmo2": olmo2,
    "granite": granite,
    "starcoder2": starcoder2,
    "stablelm": stablelm,
    "stablelm-parallel": stablelm_parallel,
    "cohere": cohere,
    "smollm3": smollm3,
    "glm4": glm4,
    "gpt2": gpt2,
    "llama-yarn": llama_yarn,
}
