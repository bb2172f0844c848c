"""transformers on float64 models, without the float32 it pins inside; for make_golden.py.

Norms, softmax, rotary angles and ALiBi are computed in float32 or bfloat16 by transformers even where the weights are
float64. float64_transformers() lifts that while a model is built and run.
"""

import contextlib
import copy
import importlib
import json
import pathlib
from typing import Callable
from unittest import mock

import torch
import transformers
from transformers import modeling_rope_utils

Tensors = dict[str, torch.Tensor]
# (ids [T] int64, tokens of them that are the prompt) -> hidden after the last norm [T, E], logits [T, V]
Run = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
MakeRun = Callable[[Tensors], Run]


class _Float64Torch:
    """Stands for the module `torch` in a modeling file, so that float32 written there means float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


# Whose modeling files write float32 in them.
PATCHED_MODELS = (
    *("cohere", "falcon", "gemma2", "gemma3", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoe", "llama"),
    *("mixtral", "mpt", "olmo2", "olmoe", "qwen2_moe", "qwen3_moe", "phi", "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"),
)


@contextlib.contextmanager
def float64_transformers():
    modeling = [importlib.import_module(f"transformers.models.{name}.modeling_{name}") for name in PATCHED_MODELS]
    with contextlib.ExitStack() as stack:
        for module in (*modeling, modeling_rope_utils):
            stack.enter_context(mock.patch.object(module, "torch", _Float64Torch()))
        stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
        stack.enter_context(mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.double))
        # Dynamic RoPE multiplies an int tensor by a Python float, which gives the default type.
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        yield


def _module_name(name: str) -> str:
    """transformers 5 renames this tensor of GPT-NeoX when it loads a file."""
    return "lm_head.weight" if name == "embed_out.weight" else name


def build_model(config, attention: str, tensors: Tensors):
    model = transformers.AutoModelForCausalLM.from_config(
        copy.deepcopy(config), dtype=next(iter(tensors.values())).dtype, attn_implementation=attention, experts_implementation="eager"
    )
    missing = model.load_state_dict({_module_name(name): t for name, t in tensors.items()}, strict=False)
    model.tie_weights()
    if missing.unexpected_keys or set(missing.missing_keys) - set(model.all_tied_weights_keys):
        raise SystemExit(f"{config.model_type}: tensors do not fit the model: {missing}")
    return model.eval()


def run_model(model, ids: torch.Tensor, **kwargs):
    """Logits as the model gives them, scaled and capped where it does that."""
    hidden = model.base_model(ids[None], use_cache=False, **kwargs).last_hidden_state
    return hidden[0], model(ids[None], use_cache=False, **kwargs).logits[0]


def in_transformers(config, attention="eager", patches=(), prepare=lambda model, prompt_tokens: {}) -> MakeRun:
    """A fresh float64 model for every run. `patches` are (object, attribute, value); `prepare` may change the model and
    returns further arguments of its forward pass."""

    def make_run(tensors: Tensors) -> Run:
        def run(ids, prompt_tokens):
            with float64_transformers(), contextlib.ExitStack() as stack:
                for target, attribute, value in patches:
                    stack.enter_context(mock.patch.object(target, attribute, value))
                model = build_model(config, attention, tensors)
                return run_model(model, ids, **prepare(model, prompt_tokens))

        return run

    return make_run


def reload_in_transformers(attention: str):
    """Loads the folder as a user would, in float32, once with each config file."""

    def reload(folder: pathlib.Path) -> list[MakeRun]:
        runs = []
        for name in ("config.json", "config.v4.json"):
            values = json.loads((folder / name).read_text())
            values.pop("quantization_config", None)
            config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
            runs.append(
                lambda tensors, config=config: (
                    lambda ids, prompt_tokens: run_model(build_model(config, attention, tensors), ids)
                )
            )
        return runs

    return reload


def model_shapes(config) -> dict[str, tuple[int, ...]]:
    """Names as in a published file; a tied output matrix is absent."""
    model = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))
    tied = set(model.all_tied_weights_keys)
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items() if name not in tied}
    if config.model_type == "gpt_neox":
        shapes["embed_out.weight"] = shapes.pop("lm_head.weight")
    return shapes
