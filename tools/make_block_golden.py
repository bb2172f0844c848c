#!/usr/bin/env python3
"""Makes tests/golden/blocks/golden.safetensors: blocks of every block format and what they stand for, and for formats
that are written by rule the floats and the bytes they become.

Wants from pip: numpy, safetensors, gguf (made with 2.4, 0.8 and 0.19).

    python3 tools/make_block_golden.py [--out FILE]

tests/golden/README.md has the file's form. Bytes are stored as int32, four in each.
"""

import argparse
import pathlib

import numpy as np
from gguf import GGMLQuantizationType, GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

# Where the f16 numbers of a block lie.
HALVES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "MXFP4": [],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "IQ4_XS": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
}
FEW = ["Q2_K", "Q3_K", "IQ4_XS", "TQ1_0", "TQ2_0"]  # two blocks: random bytes under ordinary scales
PLAIN = ["F16", "BF16"]
QUANTISED = ["Q4_1", "Q5_0", "Q5_1"]  # also read as the package writes them; of the rest it writes only those below
BY_RULE = [*PLAIN, "Q8_0", "Q4_0", "MXFP4"]
# Zeros of both signs, subnormals, ones, the largest, and an ordinary one.
EDGE_HALVES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x3C00, 0x7BFF, 0xFBFF, 0x2E66], np.uint16)


def random_blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    """[N, bytes] uint8: random bytes under ordinary scales, then under those of EDGE_HALVES."""
    num_elements, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    num_random = 16 if num_elements == 32 else 6
    num_edges = len(EDGE_HALVES) if num_elements == 32 else 8
    if name in FEW:
        num_random, num_edges = 2, 0
    blocks = rng.integers(0, 256, (num_random + num_edges, num_bytes), dtype=np.uint8)
    if name == "Q8_0":
        blocks[:8, 2:] = rng.permutation(256).astype(np.uint8).reshape(8, 32)
    if name == "MXFP4":  # the exponent first: all but the largest, whose values are infinite, and the byte for NaN
        blocks[:, 0] = [0, 1, 2, 100, 120, 127, 130, 200, 250, *rng.integers(90, 140, len(blocks) - 9)]
    for order, offset in enumerate(HALVES[name]):
        halves = rng.normal(0, 0.02, len(blocks)).astype(np.float16).view(np.uint16)
        halves[num_random:] = np.roll(EDGE_HALVES, order)[:num_edges]
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks


def sources(rng: np.random.Generator) -> np.ndarray:
    """[N, 32] f32: ordinary rows, then what a writer may stumble over."""
    rows = [rng.normal(0, 10.0**e, 32) for e in (-6, -4, -2, -2, -1, -1, 0, 0, 1, 3)]
    rows += [rng.uniform(-1, 1, 32), rng.uniform(0, 1, 32), rng.uniform(-1, 0, 32), np.linspace(-1, 1, 32)]
    rows += [np.zeros(32), np.full(32, -0.0), np.full(32, 0.75), np.full(32, -0.75)]
    outlier = np.zeros(32)
    outlier[17] = -3.5
    rows += [outlier, rng.normal(0, 0.01, 32) - 20 * outlier]
    rows += [np.where(np.arange(32) == 5, 4.0, -4.0), np.where(np.arange(32) == 5, -4.0, 4.0)]  # equal magnitudes
    ties = np.where(np.arange(32) == 9, 127, np.arange(32) - 15.5)  # q8_0 has a scale of 1 here
    rows += [ties, np.where(np.arange(32) == 9, -8, np.arange(32) / 4 - 3.75)]  # and q4_0 here
    rows += [rng.normal(0, 2.0**e, 32) for e in (-22, -27, -32)]  # subnormal d, then d = 0
    return np.array(rows, np.float32)


def plain_numbers(name: str) -> np.ndarray:
    """[N, 2] uint8: finite numbers of every size and both signs."""
    end = 0x7C00 if name == "F16" else 0x7F80
    positive = np.arange(0, end, 61, dtype=np.uint16)
    return np.concatenate((positive, positive | 0x8000)).astype(np.uint16).view(np.uint8).reshape(-1, 2)


def as_int32(data: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.pad(flat, (0, -len(flat) % 4)).view(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden/blocks/golden.safetensors"))
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    source = sources(rng)
    golden = {"source": source}
    for name in [*PLAIN, *HALVES]:
        qtype = GGMLQuantizationType[name]
        blocks = plain_numbers(name) if name in PLAIN else random_blocks(name, rng)
        if name in QUANTISED:
            blocks = np.concatenate((blocks, quantize(source[:8], qtype)))
        key = name.lower()
        golden[f"{key}.blocks"] = as_int32(blocks)
        golden[f"{key}.values"] = dequantize(blocks, qtype).astype(np.float32).reshape(-1)
        if name in BY_RULE:
            written = quantize(source, qtype)
            golden[f"{key}.written"] = as_int32(written)
            golden[f"{key}.read_back"] = dequantize(written, qtype).astype(np.float32).reshape(-1)
        if not np.isfinite(golden[f"{key}.values"]).all():
            raise SystemExit(f"{name}: values are not finite")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(golden, args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
