"""Cases of make_golden.py for mixtures of experts: smaller than others, because every expert has matrices.

transformers 5 holds the experts of a layer in one tensor; published checkpoints have a module for each, which is how
they are written here unless a case says otherwise.
"""

import functools
import re

import torch
import transformers

from float64_transformers import MakeRun, Tensors, in_transformers, model_shapes, reload_in_transformers
from golden_cases import COMMON, Case, v5_config, with_config
from golden_families import ROPE, old_config

SHAPE = COMMON | dict(vocab_size=16, hidden_size=16, num_hidden_layers=2, max_position_embeddings=512)
HEADS = dict(num_attention_heads=2, num_key_value_heads=1)

# The names of a mixture's module and of an expert's matrices: gate, up, down.
MIXTRAL = ("block_sparse_moe", ("w1", "w3", "w2"))
QWEN = ("mlp", ("gate_proj", "up_proj", "down_proj"))


def published(names, tensors: Tensors) -> Tensors:
    """Tensors as transformers holds them -> as checkpoints have them."""
    module, (gate, up, down) = names
    out = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*)\.mlp\.experts\.(gate_up_proj|down_proj)", name)
        if not found:
            out[re.sub(r"\.mlp\.(gate\.)", rf".{module}.\1", name)] = tensor
            continue
        for i, matrix in enumerate(tensor):
            at = f"{found[1]}.{module}.experts.{i}."
            if found[2] == "down_proj":
                out[f"{at}{down}.weight"] = matrix
            else:
                out[f"{at}{gate}.weight"], out[f"{at}{up}.weight"] = matrix.chunk(2)
    return out


def held(names, tensors: Tensors) -> Tensors:
    """The other way."""
    module, (gate, up, down) = names
    out, experts = {}, {}
    for name, tensor in tensors.items():
        found = re.fullmatch(rf"(.*)\.{module}\.experts\.(\d+)\.(\w+)\.weight", name)
        if found:
            experts.setdefault(found[1], {})[int(found[2]), found[3]] = tensor
        else:
            out[name.replace(f".{module}.", ".mlp.") if f".{module}.gate." in name else name] = tensor
    for at, matrices in experts.items():
        count = 1 + max(i for i, _ in matrices)
        both = [torch.cat((matrices[i, gate], matrices[i, up])) for i in range(count)]
        out[f"{at}.mlp.experts.gate_up_proj"] = torch.stack(both)
        out[f"{at}.mlp.experts.down_proj"] = torch.stack([matrices[i, down] for i in range(count)])
    return out


def from_published(names, make_run: MakeRun) -> MakeRun:
    return lambda tensors: make_run(held(names, tensors))


def published_shapes(names, config) -> dict[str, tuple[int, ...]]:
    tensors = {name: torch.empty(shape, device="meta") for name, shape in model_shapes(config).items()}
    return {name: tuple(t.shape) for name, t in published(names, tensors).items()}


def v4_config(config) -> dict:
    """With the key that published checkpoints of Qwen3 have."""
    values = old_config(config)
    if config.model_type == "qwen3_moe":
        values["num_experts"] = values.pop("num_local_experts")
    return values


def case(name: str, seed: int, what: str, config, mistake, names=None, stored_as=torch.bfloat16) -> Case:
    """`mistake` is another config, or a MakeRun."""
    wrap = functools.partial(from_published, names) if names else lambda make_run: make_run
    reload = reload_in_transformers("eager")
    if not callable(mistake):
        mistake = in_transformers(mistake)
    return Case(
        name=name,
        what=what,
        seed=seed,
        config=v5_config(config),
        config_v4=v4_config(config),
        shapes=published_shapes(names, config) if names else model_shapes(config),
        make_run=wrap(in_transformers(config)),
        reload=lambda folder: [wrap(make_run) for make_run in reload(folder)],
        mistake=wrap(mistake),
        stored_as=stored_as,
        tokens=(22, 8),
    )


def mixtral() -> Case:
    config = transformers.MixtralConfig(
        **SHAPE | HEADS | dict(num_hidden_layers=1, intermediate_size=6),
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters=ROPE,
    )
    what = "four experts of which a token goes through two, weights of the softmax of their logits"
    return case("mixtral", 2501, what, config, with_config(config, num_experts_per_tok=1), MIXTRAL)


def qwen3_moe() -> Case:
    config = transformers.Qwen3MoeConfig(
        **SHAPE | HEADS | dict(head_dim=12, intermediate_size=10, moe_intermediate_size=6),
        **dict(num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[0], rope_parameters=ROPE),
    )
    what = "an MLP in the first layer, in the second two of four experts; norms of each head's q and k, head_dim 12 of 16 / 2"
    return case("qwen3_moe", 2518, what, config, with_config(config, norm_topk_prob=False), QWEN)


def qwen2_moe() -> Case:
    config = transformers.Qwen2MoeConfig(
        **SHAPE | HEADS | dict(intermediate_size=10, moe_intermediate_size=6, shared_expert_intermediate_size=8),
        num_experts=5,
        num_experts_per_tok=2,
        decoder_sparse_step=2,
        rope_parameters=ROPE,
    )
    what = "an MLP in the first layer, in the second two of five experts, not normalised, and a shared one with a gate"

    def without_gate(tensors):
        return in_transformers(config)(
            {k: torch.zeros_like(t) if "shared_expert_gate" in k else t for k, t in tensors.items()}
        )

    return case("qwen2_moe", 2535, what, config, without_gate, QWEN)


def olmoe() -> Case:
    config = transformers.OlmoeConfig(
        **SHAPE | HEADS | dict(num_hidden_layers=1, intermediate_size=6),
        num_experts=6,
        num_experts_per_tok=3,
        rope_parameters=ROPE,
    )
    what = "three of six experts, shares of the softmax over all; norms over all heads of q and of k; fused experts"
    return case("olmoe", 2552, what, config, with_config(config, norm_topk_prob=True))


def granitemoe() -> Case:
    config = transformers.GraniteMoeConfig(
        **SHAPE | HEADS | dict(num_hidden_layers=1, intermediate_size=6),
        num_local_experts=4,
        num_experts_per_tok=2,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        logits_scaling=0.5,
        rope_parameters=ROPE,
    )
    what = "Granite's multipliers, two of four experts, whose matrices are one tensor each"
    return case("granitemoe", 2569, what, config, with_config(config, num_experts_per_tok=1))


def gpt_oss() -> Case:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
    rope |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    config = transformers.GptOssConfig(
        **SHAPE | HEADS | dict(head_dim=8, intermediate_size=6, sliding_window=8),
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters=rope,
    )
    what = "sinks, a window of 8 in the first layer, YaRN, two of four experts with biases, gate and up in turns"

    def without_biases(tensors):
        return in_transformers(config)(
            {k: torch.zeros_like(t) if "gate_up_proj_bias" in k else t for k, t in tensors.items()}
        )

    return case("gpt_oss", 2586, what, config, without_biases)


EXPERT_CASES = {
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
    "qwen2_moe": qwen2_moe,
    "olmoe": olmoe,
    "granitemoe": granitemoe,
    "gpt_oss": gpt_oss,
}
