"""Makes tiny random models and their float64 logits: the cases of golden_cases.py, golden_families.py,
golden_experts.py and golden_published.py, under tests/golden/tiny.

Wants from pip: numpy, safetensors, torch, transformers (made with 2.4, 0.8, 2.15 and 5.23).

    python3 tools/make_golden.py --out tests/golden/tiny [--only NAME]

tests/golden/README.md has the file formats. Weights are rounded to float32 first, so the files reproduce the numbers.
Two float64 implementations of a case must agree to 1e-10; a case whose point has no effect on the logits is refused.
"""

import argparse
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file

from float64_transformers import Run, Tensors
from golden_cases import CASES, Case
from golden_experts import EXPERT_CASES
from golden_families import FAMILY_CASES
from golden_published import PUBLISHED_CASES

CASES = CASES | FAMILY_CASES | EXPERT_CASES | PUBLISHED_CASES

GREEDY_TOKENS = 16
SMALLEST_MARGIN = 0.01  # far above float32 error, so greedy ids are a fair test
AGREEMENT = 1e-10  # between two float64 implementations
SMALLEST_EFFECT = 0.05  # that a mistake must have on some logit
MAX_TRIES = 200


def random_tensors(shapes: dict[str, tuple[int, ...]], generator: torch.Generator) -> Tensors:
    """Large weights, also in norms, biases and sink logits, so that every term shows in the logits."""
    tied = not any(name in shapes for name in ("lm_head.weight", "embed_out.weight"))
    out = {}
    for name, shape in sorted(shapes.items()):
        values = torch.randn(shape, generator=generator)
        if name.endswith("sinks"):
            out[name] = 2 + 1.5 * values
        elif len(shape) == 1 or "norm" in name:
            out[name] = 0.2 * values + (1 if name.endswith("weight") else 0)
        else:
            vocabulary = any(part in name for part in ("embed", "wte", "lm_head"))
            out[name] = (0.25 if vocabulary and not tied else 0.15) * values
    return out


def greedy(run: Run, prompt: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The appended ids and the smallest margin between the best and the second token; everything anew at each step."""
    ids, margin = prompt, float("inf")
    for _ in range(GREEDY_TOKENS):
        best = run(ids, len(prompt))[1][-1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        if margin < SMALLEST_MARGIN:
            break
        ids = torch.cat((ids, best.indices[:1]))
    return ids[len(prompt) :], margin


def largest_difference(run_1: Run, run_2: Run, prompts: list[torch.Tensor]) -> float:
    return max((run_1(p, len(p))[1] - run_2(p, len(p))[1]).abs().max().item() for p in prompts)


def find_weights(case: Case):
    """The first seed whose greedy paths are clear -> seed, the file's tensors, what they stand for in float32, prompts,
    greedy ids, margin."""
    for seed in range(case.seed, case.seed + MAX_TRIES):
        generator = torch.Generator().manual_seed(seed)
        tensors = random_tensors(case.shapes, generator)
        stored = case.pack({name: t.to(case.stored_as) for name, t in tensors.items()})
        tensors = {name: t.float() for name, t in case.unpack(stored).items()}
        vocab = case.config["vocab_size"]
        prompts = [torch.randint(vocab, (n,), generator=generator) for n in case.tokens]
        run = case.make_run({name: t.double() for name, t in tensors.items()})
        paths, margins = [], []
        for prompt in prompts:
            path, margin = greedy(run, prompt)
            paths.append(path)
            margins.append(margin)
            if margin < SMALLEST_MARGIN:
                break
        else:
            return seed, stored, tensors, prompts, paths, min(margins)
    raise SystemExit(f"{case.name}: no seed of {MAX_TRIES} gives a greedy margin of {SMALLEST_MARGIN}")


def check(case: Case, tensors: Tensors, prompts: list[torch.Tensor]) -> None:
    run = case.make_run(tensors)
    for label, (make_1, make_2) in case.checks.items():
        difference = largest_difference(make_1(tensors), make_2(tensors), prompts)
        print(f"  {label}: {difference:.1e}")
        if not difference <= AGREEMENT:
            raise SystemExit(f"{case.name}: {label}: differ by {difference}, expected at most {AGREEMENT}")
    effect = largest_difference(run, case.mistake(tensors), prompts)
    print(f"  the mistake changes logits by up to {effect:.2f}")
    if not effect >= SMALLEST_EFFECT:
        raise SystemExit(f"{case.name}: its point changes logits by {effect}, expected at least {SMALLEST_EFFECT}")


def make(case: Case, out: pathlib.Path) -> None:
    seed, stored, tensors, prompts, paths, margin = find_weights(case)
    wide = {name: t.double() for name, t in tensors.items()}
    check(case, wide, prompts)
    run = case.make_run(wide)
    (hidden_a, logits_a), (_, logits_b) = (run(p, len(p)) for p in prompts)

    folder = out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config, separators=(",", ":"), sort_keys=True) + "\n")
    (folder / "config.v4.json").write_text(json.dumps(case.config_v4, indent=1) + "\n")
    save_file({name: t.contiguous() for name, t in stored.items()}, folder / "model.safetensors", metadata={"format": "pt"})

    loaded = {name: t.float() for name, t in case.unpack(load_file(folder / "model.safetensors")).items()}
    reloads = [make_run(loaded) for make_run in case.reload(folder)]
    float32_difference = max(largest_difference(run, other, prompts) for other in reloads)
    golden = {
        "final_hidden_a": hidden_a.float(),
        "logits_a": logits_a.float(),
        "logits_b": logits_b.float(),
        "greedy_a": paths[0].int(),
        "greedy_b": paths[1].int(),
        "ids_a": prompts[0].int(),
        "ids_b": prompts[1].int(),
    }
    save_file({name: t.contiguous() for name, t in golden.items()}, folder / "golden.safetensors")
    summary = {
        "name": case.name,
        "model_type": case.config["model_type"],
        "what": case.what,
        "seed": seed,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "computed_in": "float64",
        "stored_in": "float32",
        "num_parameters": sum(t.numel() for t in tensors.values()),
        "tokens_a": case.tokens[0],
        "tokens_b": case.tokens[1],
        "ids_a": prompts[0].tolist(),
        "ids_b": prompts[1].tolist(),
        "greedy_a": paths[0].tolist(),
        "greedy_b": paths[1].tolist(),
        "greedy_smallest_margin": margin,
        "logits_std": logits_a.std().item(),
        "max_abs_diff_of_float32_reload": float32_difference,
    }
    (folder / "golden.json").write_text(json.dumps(summary, separators=(",", ":")) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"  seed {seed}, margin {margin:.3f}, float32 {float32_difference:.1e}, {size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden/tiny"))
    parser.add_argument("--only", metavar="NAME", choices=sorted(CASES), help="make this case alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for name in [args.only] if args.only else CASES:
        print(name, flush=True)
        make(CASES[name](), args.out)


if __name__ == "__main__":
    main()
