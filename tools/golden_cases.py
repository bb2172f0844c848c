"""The cases of make_golden.py: one function each, and a row in CASES.

What transformers does not compute comes from reference_decoder.py and is compared with transformers in a form that it
does compute (`checks`). Every case names a plausible mistake that must show in the logits, so that a test on it bites.
"""

import copy
import dataclasses
import json
import pathlib
from typing import Callable

import torch
import transformers
from transformers import FalconConfig, GPTNeoXConfig, LlamaConfig, MptConfig, Qwen2Config
from transformers.models.falcon import modeling_falcon
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama

from float64_transformers import MakeRun, Run, Tensors, in_transformers, model_shapes, reload_in_transformers
from reference_decoder import (
    alibi_slopes,
    baichuan_as_llama,
    baichuan_decoder,
    dynamic_ntk_base,
    llama_decoder,
    rope_frequencies,
)

COMMON = dict(vocab_size=96, bos_token_id=0, eos_token_id=1, pad_token_id=None, dtype="float32")


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    what: str  # goes into golden.json
    seed: int  # the first one tried
    config: dict  # config.json
    config_v4: dict  # config.v4.json
    shapes: dict[str, tuple[int, ...]]
    make_run: MakeRun  # defines the numbers
    reload: Callable[[pathlib.Path], list[MakeRun]]  # float32 runs of the written folder, one per config file
    mistake: MakeRun  # must give other logits
    checks: dict[str, tuple[MakeRun, MakeRun]] = dataclasses.field(default_factory=dict)  # pairs that must agree
    stored_as: torch.dtype = torch.float32  # of the weights, which are rounded to it
    tokens: tuple[int, int] = (48, 33)  # of the two prompts
    pack: Callable[[Tensors], Tensors] = lambda tensors: tensors  # what the file has of the numbers
    unpack: Callable[[Tensors], Tensors] = lambda tensors: tensors  # and what that stands for


def in_reference(make_decoder, config: dict) -> MakeRun:
    def make_run(tensors: Tensors) -> Run:
        decoder = make_decoder(tensors, config)

        def run(ids, prompt_tokens):
            hidden = decoder.hidden(ids)
            return hidden, decoder.logits(hidden)

        return run

    return make_run


def reload_in_reference(make_decoder):
    return lambda folder: [in_reference(make_decoder, json.loads((folder / "config.json").read_text()))]


def with_config(config, **changes):
    changed = copy.deepcopy(config)
    for key, value in changes.items():
        setattr(changed, key, value)
    return changed


def v5_config(config) -> dict:
    config = copy.deepcopy(config)
    config.architectures = [transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__]
    return json.loads(config.to_json_string(use_diff=True)) | {"transformers_version": transformers.__version__}


def v4_config(config) -> dict:
    """The same with the key names of transformers 4. Scaled RoPE is given as {"type": ...}, the oldest spelling."""
    values = v5_config(config) | {"transformers_version": "4.44.0", "torch_dtype": "float32"}
    for key in ("dtype", "layer_types"):
        values.pop(key, None)
    rope = values.pop("rope_parameters", None)
    if rope is None:
        return values
    base, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    if config.model_type == "gpt_neox":
        values |= {"rotary_emb_base": base, "rotary_pct": rope.pop("partial_rotary_factor")}
    else:
        values["rope_theta"] = base
    return values | {"rope_scaling": None if kind == "default" else {"type": kind} | rope}


def transformers_case(name: str, what: str, seed: int, config, mistake: MakeRun, **fields) -> Case:
    """A case whose numbers transformers itself computes."""
    attention = fields.pop("attention", "eager")
    old_config = fields.pop("config_v4", None)
    return Case(
        name=name,
        what=what,
        seed=seed,
        config=v5_config(config),
        config_v4=old_config or v4_config(config),
        shapes=model_shapes(config),
        make_run=fields.pop("make_run", in_transformers(config, attention)),
        reload=reload_in_transformers(attention),
        mistake=mistake,
        **fields,
    )


def _falcon_config(**changes):
    return FalconConfig(
        **COMMON
        | dict(hidden_size=96, num_attention_heads=6, num_hidden_layers=2, ffn_hidden_size=192)
        | dict(max_position_embeddings=512, bias=False, parallel_attn=True, new_decoder_architecture=True)
        | changes
    )


def _with_tiled_groups(config, attention="eager") -> MakeRun:
    """The mistake of query head q reading KV head q % Hkv instead of q / G."""
    num_kv_heads = config.num_kv_heads
    split = modeling_falcon.FalconAttention._split_heads

    def tiled(self, fused_qkv):
        q, k, v = split(self, fused_qkv)
        order = torch.arange(q.shape[2]) % num_kv_heads * (q.shape[2] // num_kv_heads)
        return q, k[:, :, order], v[:, :, order]

    return in_transformers(config, attention, patches=[(modeling_falcon.FalconAttention, "_split_heads", tiled)])


def falcon_grouped() -> Case:
    config = _falcon_config(num_kv_heads=2)
    what = (
        "Falcon-40B form: query_key_value rows are per KV head [its query heads, k, v]; attention and MLP in "
        "parallel, num_ln_in_parallel_attn null means 2 (ln_attn, ln_mlp); feed-forward width from ffn_hidden_size"
    )
    return transformers_case("falcon-grouped", what, 1304, config, _with_tiled_groups(config))


def falcon_grouped_1ln() -> Case:
    config = _falcon_config(num_kv_heads=2, num_ln_in_parallel_attn=1)
    what = "Falcon2-11B form: as falcon-grouped, but attention and MLP share one norm, input_layernorm"
    return transformers_case("falcon-grouped-1ln", what, 1321, config, _with_tiled_groups(config))


FALCON_ALIBI = (
    "score = (q.k + slope * j) / sqrt(head_dim); slopes in the order of the ALiBi paper (6 heads: 2^-2, 2^-4, "
    "2^-6, 2^-8, 2^-1, 2^-3). transformers builds slope * j in bfloat16, here it is float64 (the same at these "
    "lengths: the slopes are powers of two). These are the numbers of its sdpa attention, which are right: its "
    "eager attention adds the bias twice"
)


def _falcon_alibi_case(name: str, what: str, seed: int, config) -> Case:
    build = modeling_falcon.build_alibi_tensor

    def scaled_alibi(factor):
        return [(modeling_falcon, "build_alibi_tensor", lambda *args, **kwargs: factor * build(*args, **kwargs))]

    head_dim = config.hidden_size // config.num_attention_heads
    once = in_transformers(config, "sdpa")
    return transformers_case(
        name,
        what,
        seed,
        config,
        attention="sdpa",
        mistake=in_transformers(config, "sdpa", patches=scaled_alibi(head_dim**0.5)),  # added after the scaling
        # Eager adds alibi / sqrt(head_dim) in the mask and once more in the scores: with half of it, it is right.
        checks={"sdpa = eager with half the slopes": (once, in_transformers(config, "eager", scaled_alibi(0.5)))},
    )


def falcon_alibi() -> Case:
    config = _falcon_config(
        alibi=True, multi_query=False, parallel_attn=False, bias=True, new_decoder_architecture=False
    )
    what = (
        "Falcon-RW form: ALiBi, query_key_value rows are [head][q, k, v][head_dim], serial blocks, biases. "
        + FALCON_ALIBI
    )
    return _falcon_alibi_case("falcon-alibi", what, 1338, config)


def falcon_alibi_grouped() -> Case:
    config = _falcon_config(alibi=True, num_kv_heads=2)
    what = "ALiBi with the grouped layout of falcon-grouped; transformers accepts it, no known checkpoint has it. "
    return _falcon_alibi_case("falcon-alibi-grouped", what + FALCON_ALIBI, 1355, config)


def _llama_config(**changes):
    return LlamaConfig(
        **COMMON
        | dict(hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, head_dim=16)
        | dict(num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5)
        | changes
    )


def llama_rope_dynamic() -> Case:
    base, factor, trained = 10000.0, 4.0, 32
    rope = {"rope_type": "dynamic", "factor": factor, "rope_theta": base}
    config = _llama_config(max_position_embeddings=trained, rope_parameters=rope)

    def fix_base(model, prompt_tokens):
        rotary = model.model.rotary_emb
        rotary.rope_type = "default"  # transformers would recompute the base as the sequence grows
        rotary.inv_freq = rope_frequencies(
            config.head_dim, dynamic_ntk_base(base, factor, config.head_dim, trained, prompt_tokens)
        )
        return {}

    fixed = in_transformers(config, prepare=fix_base)
    what = (
        "dynamic NTK rope scaling: base' = base * (factor * n / trained - (factor - 1))^(d / (d - 2)) with n = "
        "max(trained, prompt tokens), 48 for a and 33 for b against trained 32. The base stays while greedy_a and "
        "greedy_b are decoded (transformers would let it grow)"
    )
    return transformers_case(
        "llama-rope-dynamic",
        what,
        1372,
        config,
        make_run=fixed,
        mistake=in_transformers(_llama_config()),  # unscaled
        checks={"fixed base = transformers' own on a prompt": (fixed, in_transformers(config))},
    )


def _sink_case(name: str, what: str, seed: int, config, sinks_of) -> Case:
    """`sinks_of(tensors, layer)` gives the sink logits [Hq] that the outside implementation is to use."""
    values = v5_config(config)
    plain = {key: value for key, value in values.items() if key not in ("attention_sinks", "zero_sink")}
    no_sinks = in_reference(llama_decoder, plain)
    shapes = model_shapes(config)
    if config.to_dict().get("attention_sinks"):
        shapes |= {
            f"model.layers.{idx}.self_attn.sinks": (config.num_attention_heads,)
            for idx in range(config.num_hidden_layers)
        }

    def dense(tensors):
        return in_transformers(config)({key: t for key, t in tensors.items() if not key.endswith("sinks")})

    def with_sinks(tensors):
        def add_sinks(model, prompt_tokens):
            for idx, layer in enumerate(model.model.layers):
                layer.self_attn.sinks = sinks_of(tensors, idx)
            return {}

        weights = {key: t for key, t in tensors.items() if not key.endswith("sinks")}
        gpt_oss = [(modeling_llama, "eager_attention_forward", modeling_gpt_oss.eager_attention_forward)]
        return in_transformers(config, patches=gpt_oss, prepare=add_sinks)(weights)

    return Case(
        name=name,
        what=what,
        seed=seed,
        config=values,
        config_v4=v4_config(config),
        shapes=shapes,
        make_run=in_reference(llama_decoder, values),
        reload=reload_in_reference(llama_decoder),
        mistake=no_sinks,
        checks={
            "without sinks = Llama": (no_sinks, dense),
            "with sinks = Llama with the attention of gpt-oss": (in_reference(llama_decoder, values), with_sinks),
        },
    )


def llama_sink_logits() -> Case:
    config = _llama_config(num_attention_heads=8, attention_sinks=True)
    what = (
        "a learned sink logit per query head, model.layers.L.self_attn.sinks [Hq]: softmax over [scores, sink], then "
        'without the last column; "attention_sinks": true in the config says so'
    )
    return _sink_case(
        "llama-sink-logits", what, 1389, config, lambda t, layer: t[f"model.layers.{layer}.self_attn.sinks"]
    )


def llama_zero_sink() -> Case:
    config = _llama_config(num_attention_heads=8, zero_sink=True)
    what = (
        'softmax with one more logit, 0, in the denominator of every head: "zero_sink": true in the config; no tensor'
    )
    zeros = torch.zeros(config.num_attention_heads, dtype=torch.float64)
    return _sink_case("llama-zero-sink", what, 1406, config, lambda t, layer: zeros)


def _baichuan_config(**changes) -> dict:
    return {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_act": "silu",
        "hidden_size": 96,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "model_type": "baichuan",
        "num_attention_heads": 6,
        "num_hidden_layers": 2,
        "pad_token_id": None,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.44.0",
        "use_cache": True,
        "vocab_size": 96,
    } | changes


def _baichuan_case(name: str, what: str, seed: int, config: dict, mistake, outside) -> Case:
    """`mistake` and `outside(llama_config)` give MakeRun's; the latter reads Llama's tensor names."""
    width, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {
        "model.embed_tokens.weight": (vocab, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (vocab, width),
    }
    for idx in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
            "self_attn.W_pack": (3 * width, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (ffn, width),
            "mlp.up_proj": (ffn, width),
            "mlp.down_proj": (width, ffn),
        }
        shapes |= {f"model.layers.{idx}.{part}.weight": shape for part, shape in layer.items()}
    same_keys = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
    )
    as_llama = outside(LlamaConfig(**{key: config[key] for key in same_keys}, tie_word_embeddings=False))
    run = in_reference(baichuan_decoder, config)
    return Case(
        name=name,
        what=what,
        seed=seed,
        config=config,
        config_v4=config,
        shapes=shapes,
        make_run=run,
        reload=reload_in_reference(baichuan_decoder),
        mistake=mistake,
        checks={"reference = Llama": (run, lambda tensors: as_llama(baichuan_as_llama(tensors)))},
    )


BAICHUAN_KINDS = (
    " Both Baichuan models have model_type baichuan: with the key max_position_embeddings it is the one with RoPE "
    "(7B), without it (model_max_length instead) the one with ALiBi (13B). Not for Baichuan2, whose lm_head rows are "
    "normalised"
)


def baichuan_13b() -> Case:
    config = _baichuan_config(architectures=["BaichuanForCausalLM"], model_max_length=512)
    slopes = alibi_slopes(config["num_attention_heads"])

    def with_alibi(num_tokens):
        def prepare(model, prompt_tokens):
            model.model.rotary_emb.inv_freq.zero_()  # no rotation
            distance = torch.arange(num_tokens)[:, None] - torch.arange(num_tokens)
            bias = (-slopes[:, None, None] * distance).masked_fill(distance < 0, torch.finfo(torch.float64).min)
            return {"attention_mask": bias[None]}

        return prepare

    def outside(llama_config):
        def make_run(tensors):
            def run(ids, prompt_tokens):
                return in_transformers(llama_config, prepare=with_alibi(len(ids)))(tensors)(ids, prompt_tokens)

            return run

        return make_run

    what = (
        "ALiBi: score = q.k / sqrt(head_dim) + slope * (j - t), slopes in the order of the ALiBi paper (6 heads: 2^-2, "
        "2^-4, 2^-6, 2^-8, 2^-1, 2^-3); W_pack rows are q, k, v; untied lm_head." + BAICHUAN_KINDS
    )
    rope = in_reference(baichuan_decoder, config | {"max_position_embeddings": 512})
    return _baichuan_case("baichuan-13b", what, 1423, config, rope, outside)


def baichuan_7b() -> Case:
    config = _baichuan_config(architectures=["BaiChuanForCausalLM"], max_position_embeddings=512)
    no_rope_key = {key: value for key, value in config.items() if key != "max_position_embeddings"}
    what = (
        "RoPE with base 10000 (the config has no key for it); W_pack rows are q, k, v; untied lm_head." + BAICHUAN_KINDS
    )
    alibi = in_reference(baichuan_decoder, no_rope_key)
    return _baichuan_case("baichuan-7b", what, 1440, config, alibi, in_transformers)


def qwen2_untied() -> Case:
    config = Qwen2Config(
        **COMMON,
        **dict(hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4),
        **dict(num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False),
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    )

    def tied(tensors):
        return in_transformers(config)(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})

    return transformers_case("qwen2-untied", "bias on q, k, v; an lm_head of its own", 1457, config, tied)


def _gpt_neox_config(**changes):
    return GPTNeoXConfig(
        **COMMON
        | dict(hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=2)
        | dict(max_position_embeddings=512, layer_norm_eps=1e-5)
        | changes
    )


def gpt_neox_serial() -> Case:
    config = _gpt_neox_config(use_parallel_residual=False)
    parallel = in_transformers(with_config(config, use_parallel_residual=True))
    what = "use_parallel_residual false: the MLP reads what attention has added; a quarter of head_dim is rotated"
    return transformers_case("gpt_neox-serial", what, 1474, config, parallel)


def gpt_neox_full_rotary() -> Case:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = _gpt_neox_config(num_attention_heads=4, rope_parameters=rope | {"partial_rotary_factor": 1.0})
    quarter = in_transformers(with_config(config, rope_parameters=rope | {"partial_rotary_factor": 0.25}))
    what = "rotary_pct 1.0: all of head_dim is rotated; parallel residual"
    return transformers_case("gpt_neox-full-rotary", what, 1491, config, quarter)


def mpt_clip() -> Case:
    shape = dict(d_model=48, n_heads=6, n_layers=2, max_seq_len=512)
    attention = {"alibi": True, "alibi_bias_max": 8, "clip_qkv": 0.75, "softmax_scale": None}
    config = MptConfig(**COMMON, **shape, attn_config=attention)
    unclipped = in_transformers(MptConfig(**COMMON, **shape, attn_config=attention | {"clip_qkv": None}))
    what = (
        "clip_qkv: q, k and v are clamped to +-0.75 before attention; 6 heads, so the slopes are those of 8 heads "
        "in the order 1, 3, 5, 7, 0, 2 (2^-2, 2^-4, 2^-6, 2^-8, 2^-1, 2^-3)"
    )
    return transformers_case("mpt-clip", what, 1541, config, unclipped)


CASES = {
    "falcon-grouped": falcon_grouped,
    "falcon-grouped-1ln": falcon_grouped_1ln,
    "falcon-alibi": falcon_alibi,
    "falcon-alibi-grouped": falcon_alibi_grouped,
    "llama-rope-dynamic": llama_rope_dynamic,
    "llama-sink-logits": llama_sink_logits,
    "llama-zero-sink": llama_zero_sink,
    "baichuan-13b": baichuan_13b,
    "baichuan-7b": baichuan_7b,
    "qwen2-untied": qwen2_untied,
    "gpt_neox-serial": gpt_neox_serial,
    "gpt_neox-full-rotary": gpt_neox_full_rotary,
    "mpt-clip": mpt_clip,
}
