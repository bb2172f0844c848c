"""Cases of make_golden.py for weights that are quantised as they are published: matrices packed as the methods' own
programs pack them, and the logits of the model that has the numbers they stand for.

Packing and unpacking are written from each method's definition, but for MXFP4, which transformers unpacks itself.
"""

import dataclasses
import re

import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from float64_transformers import Tensors, in_transformers
from golden_cases import COMMON, Case, transformers_case, v4_config
from golden_experts import HEADS, SHAPE
from golden_experts import case as experts_case
from golden_families import ROPE

GROUP = 32
LINEAR = re.compile(r".*\.(q|k|v|o|gate|up|down)_proj\.weight")


def with_method(case: Case, pack, unpack, method: dict) -> Case:
    """The case with `pack` between its numbers and its file; `unpack` is the way back."""
    method = {"quantization_config": method}
    return dataclasses.replace(
        case, config=case.config | method, config_v4=case.config_v4 | method, pack=pack, unpack=unpack
    )


def mapped(tensors: Tensors, pattern, change) -> Tensors:
    """`change` makes several tensors of one whose name fits."""
    out = {}
    for name, tensor in tensors.items():
        out |= change(name, tensor) if re.fullmatch(pattern, name) else {name: tensor}
    return out


# ---- MXFP4 ----------------------------------------------------------------------------------------------------------

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def pack_mxfp4(tensors: Tensors) -> Tensors:
    def pack(name, tensor):
        rows = tensor.float().transpose(1, 2)
        groups = rows.reshape(*rows.shape[:2], -1, 32)
        exponents = groups.abs().amax(-1).log2().floor() - 2
        scaled = groups / exponents.exp2()[..., None]
        codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (scaled < 0)
        blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        return {f"{name}_blocks": blocks, f"{name}_scales": (exponents + 127).to(torch.uint8)}

    return mapped(tensors, r".*\.experts\.(gate_up|down)_proj", pack)


def unpack_mxfp4(tensors: Tensors) -> Tensors:
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            scales = tensors[name.replace("_blocks", "_scales")]
            out[name.removesuffix("_blocks")] = convert_moe_packed_tensors(tensor, scales, dtype=torch.float32)
        elif not name.endswith("_scales"):
            out[name] = tensor
    return out


def gpt_oss_mxfp4() -> Case:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
    rope |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    shape = SHAPE | HEADS | dict(hidden_size=32, num_hidden_layers=1, head_dim=8, intermediate_size=32)
    config = transformers.GptOssConfig(
        **shape, sliding_window=8, num_local_experts=3, num_experts_per_tok=2, rope_parameters=rope
    )

    def without_scales(tensors):
        return in_transformers(config)({k: t.sign() if "down_proj" in k and t.dim() > 2 else t for k, t in tensors.items()})

    what = "experts in blocks of 32 4-bit floats with a power of two, as gpt-oss is published"
    case = experts_case("gpt_oss-mxfp4", 2701, what, config, without_scales)
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    return with_method(case, pack_mxfp4, unpack_mxfp4, method)


# ---- 8-bit floats in blocks -----------------------------------------------------------------------------------------

BLOCK = (32, 64)


def by_blocks(scales: torch.Tensor, shape) -> torch.Tensor:
    return scales.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)[: shape[0], : shape[1]]


def pack_fp8(tensors: Tensors) -> Tensors:
    def pack(name, tensor):
        rows, columns = tensor.shape
        blocks = tensor.float().reshape(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1])
        scales = blocks.abs().amax((1, 3)) / 448
        codes = (tensor.float() / by_blocks(scales, tensor.shape)).to(torch.float8_e4m3fn)
        return {name: codes, f"{name}_scale_inv": scales}

    return mapped(tensors, LINEAR, pack)


def unpack_fp8(tensors: Tensors) -> Tensors:
    def unpack(name, tensor):
        return {name: tensor.float() * by_blocks(tensors[f"{name}_scale_inv"], tensor.shape)}

    return mapped({k: t for k, t in tensors.items() if not k.endswith("_scale_inv")}, LINEAR, unpack)


# ---- 4-bit integers -------------------------------------------------------------------------------------------------

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(codes: torch.Tensor, order=range(8)) -> torch.Tensor:
    """[N, 8 M] of 4 bits -> [N, M] int32; nibble i of a word is column order[i] of its eight."""
    eights = codes.to(torch.int64).reshape(codes.shape[0], -1, 8)
    packed = sum(eights[..., column] << (4 * i) for i, column in enumerate(order))
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def nibbles(packed: torch.Tensor, order=range(8)) -> torch.Tensor:
    out = torch.empty(*packed.shape, 8, dtype=torch.int64)
    for i, column in enumerate(order):
        out[..., column] = (packed.to(torch.int64) >> (4 * i)) & 15
    return out.flatten(1)


def affine(tensor: torch.Tensor):
    """[N, K] -> codes [N, K], zero points and f16 scales [N, K / GROUP]; zero points from 1, as GPTQ needs."""
    groups = tensor.float().reshape(tensor.shape[0], -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 14).half()
    zeros = (-low / scales.float()).round().clamp(1, 15)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15)
    return codes.flatten(1), zeros, scales


def turned_back(codes, zeros, scales, groups) -> torch.Tensor:
    """codes [K, N], zeros and scales [G, N], the group of each of K -> [N, K]."""
    return ((codes - zeros[groups]) * scales.float()[groups]).T.float().contiguous()


def pack_awq(tensors: Tensors) -> Tensors:
    def pack(name, tensor):
        stem = name.removesuffix("weight")
        codes, zeros, scales = affine(tensor)
        return {
            f"{stem}qweight": words(codes.T, AWQ_ORDER),
            f"{stem}qzeros": words(zeros.T, AWQ_ORDER),
            f"{stem}scales": scales.T.contiguous(),
        }

    return mapped(tensors, LINEAR, pack)


def unpack_awq(tensors: Tensors) -> Tensors:
    out = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix("qweight")
        if name.endswith(".qweight"):
            codes, zeros = nibbles(tensor, AWQ_ORDER), nibbles(tensors[f"{stem}qzeros"], AWQ_ORDER)
            groups = torch.arange(len(codes)) // GROUP
            out[f"{stem}weight"] = turned_back(codes, zeros, tensors[f"{stem}scales"], groups)
        elif not name.endswith((".qzeros", ".scales")):
            out[name] = tensor
    return out


def pack_gptq(tensors: Tensors) -> Tensors:
    """The last matrix of a layer with its columns in an order of their own, as where the important come first."""

    def pack(name, tensor):
        stem = name.removesuffix("weight")
        num_columns = tensor.shape[1]
        order = torch.arange(num_columns)
        if "down_proj" in name:
            order = torch.randperm(num_columns, generator=torch.Generator().manual_seed(1))
        codes, zeros, scales = affine(tensor[:, order])
        groups = torch.empty(num_columns, dtype=torch.int32)
        groups[order] = (torch.arange(num_columns) // GROUP).to(torch.int32)
        own = torch.empty_like(codes)
        own[:, order] = codes
        return {
            f"{stem}qweight": words(own).T.contiguous(),
            f"{stem}qzeros": words(zeros.T - 1),
            f"{stem}scales": scales.T.contiguous(),
            f"{stem}g_idx": groups,
        }

    return mapped(tensors, LINEAR, pack)


def unpack_gptq(tensors: Tensors) -> Tensors:
    out = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix("qweight")
        if name.endswith(".qweight"):
            codes = nibbles(tensor.T).T
            zeros = nibbles(tensors[f"{stem}qzeros"]) + 1
            scales, groups = tensors[f"{stem}scales"], tensors[f"{stem}g_idx"].long()
            steps = (codes - zeros[groups]) * scales.float()[groups]
            in_order = bool((groups == torch.arange(len(groups)) // GROUP).all())
            # Where columns of a group are apart the engine has f16.
            out[f"{stem}weight"] = (steps if in_order else steps.half().float()).T.contiguous()
        elif not name.endswith((".qzeros", ".scales", ".g_idx")):
            out[name] = tensor
    return out


def llama(name: str, seed: int, what: str, pack, unpack, method: dict, hidden=32) -> Case:
    shape = COMMON | dict(vocab_size=16, hidden_size=hidden, num_hidden_layers=1, max_position_embeddings=512)
    config = transformers.LlamaConfig(
        **shape | dict(num_attention_heads=2, num_key_value_heads=1, intermediate_size=64), rope_parameters=ROPE
    )

    def without_down(tensors):
        return in_transformers(config)({k: torch.zeros_like(t) if "down_proj" in k else t for k, t in tensors.items()})

    case = transformers_case(
        name, what, seed, config, without_down, config_v4=v4_config(config), stored_as=torch.bfloat16, tokens=(22, 8)
    )
    return with_method(case, pack, unpack, method)


def llama_fp8() -> Case:
    method = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(BLOCK)}
    what = "8-bit floats with a scale for each block of 32 x 64"
    return llama("llama-fp8", 2702, what, pack_fp8, unpack_fp8, method, hidden=64)


def llama_awq() -> Case:
    method = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    return llama("llama-awq", 2703, "4 bits, a scale and a zero point for 32", pack_awq, unpack_awq, method)


def llama_gptq() -> Case:
    method = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False}
    what = "4 bits, a scale and a zero point for 32, of down_proj for 32 columns that are apart"
    return llama("llama-gptq", 2704, what, pack_gptq, unpack_gptq, method)


PUBLISHED_CASES = {
    "gpt_oss-mxfp4": gpt_oss_mxfp4,
    "llama-fp8": llama_fp8,
    "llama-awq": llama_awq,
    "llama-gptq": llama_gptq,
}
