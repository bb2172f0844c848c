"""Perplexity of the small 7M models under StreamingLLM caches, in float64: reference numbers for the engine.

Wants from pip: numpy, safetensors, tokenizers, torch.

    python3 tools/make_perplexity_golden.py --models DIR --text FILE --out tests/golden/perplexity/table.json

DIR holds the folders named in MODELS. FILE is the book Emma as UTF-8 text, or a .tar.xz archive with it. Characters
50000 to 400000 (code points) are encoded and cut to 4096 ids; models with a dedicated first token start with id 0 and
read 4095 ids of text. The mean runs over the 4095 predictions within them. Every head of every layer follows the rule;
positions are those inside the cache. Writes, beside the table, the ids: ids.safetensors.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import tarfile
import time

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from reference_decoder import CacheRule, llama_decoder, mpt_decoder

NUM_TOKENS = 4096
FIRST_CHARACTER, LAST_CHARACTER = 50_000, 400_000
FIRST_TOKEN = 0  # the dedicated token
MODELS = {  # name -> key of the ids it reads
    "headwise-7m-sink-token": "ids_with_first_token",
    "headwise-7m-plain": "ids",
    "headwise-7m-zero-sink": "ids",
    "headwise-7m-alibi": "ids_with_first_token",
}
RULES = {"dense": None} | {f"{s}+{w}": CacheRule(s, w) for s, w in ((0, 256), (1, 255), (2, 254), (4, 252))}


def read_text(path: pathlib.Path) -> str:
    """The stretch of the book that is scored; line ends stay as they are in the file."""
    if path.suffixes[-2:] == [".tar", ".xz"]:
        with tarfile.open(path) as archive:
            member = next(m for m in archive.getmembers() if pathlib.PurePath(m.name).name.startswith("Emma"))
            data = archive.extractfile(member).read()
    else:
        data = path.read_bytes()
    return data.decode("utf-8")[FIRST_CHARACTER:LAST_CHARACTER]


def encode(text: str, model_dir: pathlib.Path) -> dict[str, torch.Tensor]:
    """Both id lists, [4096] int32."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:NUM_TOKENS]
    with_first = [FIRST_TOKEN] + ids[: NUM_TOKENS - 1]
    return {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "ids_with_first_token": torch.tensor(with_first, dtype=torch.int32),
    }


def load_decoder(model_dir: pathlib.Path):
    config = json.loads((model_dir / "config.json").read_text())
    tensors = {name: t.double() for name, t in load_file(model_dir / "model.safetensors").items()}
    return {"llama": llama_decoder, "mpt": mpt_decoder}[config["model_type"]](tensors, config)


def mean_nll(decoder, ids: torch.Tensor, rule: CacheRule | None) -> float:
    """Mean of -log p(ids[t + 1] | ids[0..t]), natural logarithm."""
    ids = ids.long()
    hidden = decoder.hidden(ids, rule)[:-1]
    total = 0.0
    for rows, targets in zip(hidden.split(512), ids[1:].split(512)):
        total += torch.nn.functional.cross_entropy(decoder.logits(rows), targets, reduction="sum").item()
    return total / len(hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, required=True, help="folder of the model folders")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="Emma, .txt or .tar.xz")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden/perplexity/table.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    text = read_text(args.text)
    table, all_ids = {}, None
    for name, ids_key in MODELS.items():
        ids = encode(text, args.models / name)
        if all_ids is None:
            all_ids = ids
        if any(not torch.equal(ids[key], all_ids[key]) for key in ids):
            raise SystemExit(f"{name}: its tokenizer gives other ids than the first model's, expected one tokenizer")
        decoder = load_decoder(args.models / name)
        table[name] = {"ids": ids_key, "rules": {}}
        for label, rule in RULES.items():
            started = time.monotonic()
            nll = mean_nll(decoder, ids[ids_key], rule)
            row = {"perplexity": math.exp(nll), "mean_nll": nll}
            table[name]["rules"][label] = (dataclasses.asdict(rule) if rule else {"full": True}) | row
            print(f"{name} {label}: {row['perplexity']:.4f} ({time.monotonic() - started:.0f} s)", flush=True)

    stretch = f"characters {FIRST_CHARACTER} to {LAST_CHARACTER}, first {NUM_TOKENS} ids"
    result = {
        "what": "perplexity under sink + recent caches, positions in the cache, all heads alike",
        "text": f"Emma (Project Gutenberg 158), {stretch}",
        "predictions": NUM_TOKENS - 1,
        "computed_in": "float64",
        "torch": torch.__version__,
        "models": table,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(all_ids, args.out.parent / "ids.safetensors")
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
