#!/usr/bin/env python3
"""Makes tests/golden/lm_eval/golden.json: what lm-eval's own class for transformers ("hf", float32 on a CPU) gives on the tasks
of that folder for the bundled model.

Wants from pip: lm-eval[hf] and torch (made with 0.4.13 and 2.15). Called as make_lm_eval_golden.py; prints the seconds.
"""
import json
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "headwise-17m"
FOLDER = ROOT / "tests" / "golden" / "lm_eval"
sys.path.insert(0, str(ROOT / "tests" / "support"))
import lm_eval_tasks  # noqa: E402


def with_special_tokens(folder):
    """The model with a file that transformers wants for its tokenizer: which tokens begin and end a text."""
    for file in MODEL.iterdir():
        os.symlink(file, folder / file.name)
    config = json.loads((MODEL / "config.json").read_text())
    tokens = {entry["id"]: entry["content"] for entry in json.loads((MODEL / "tokenizer.json").read_text())["added_tokens"]}
    eos = config["eos_token_id"]
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[eos[0] if isinstance(eos, list) else eos],
        "model_max_length": config["max_position_embeddings"]}))
    return folder


def main():
    with tempfile.TemporaryDirectory() as holder:
        work = pathlib.Path(holder)
        model = work / "model"
        model.mkdir()
        begin = time.perf_counter()
        found = lm_eval_tasks.run([sys.executable, "-m", "lm_eval"], "hf", work, "--device", "cpu",
                                  pretrained=with_special_tokens(model), dtype="float32")
        print(f"{time.perf_counter() - begin:.1f} s")
    (FOLDER / "golden.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
