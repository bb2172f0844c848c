#!/usr/bin/env python3
"""Makes tests/golden/nf4: a folder with two matrices as bitsandbytes keeps them in 4 bits, and what its own library makes
of them. The scales of the second are codes themselves.

Wants the wheel of bitsandbytes (made with 0.50.2), of which it needs the library for CPUs alone:

    python3 tools/make_nf4_golden.py --library .../bitsandbytes/libbitsandbytes_cpu.so [--out FOLDER]
"""

import argparse
import ctypes
import json
import pathlib
import random
import struct

BLOCK, OUTER_BLOCK, OFFSET = 64, 16, 0.0478515625
SHAPES = {"once": (6, 128), "twice": (20, 64)}


def floats(values):
    return (ctypes.c_float * len(values))(*values)


class Library:
    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))

    def nf4(self, codes: bytes, scales: list[float], rows: int, columns: int) -> list[float]:
        out = floats([0.0] * rows * columns)
        of = self.library.cdequantize_blockwise_cpu_nf4_fp32
        of(codes, floats(scales), out, *(ctypes.c_longlong(n) for n in (BLOCK, rows, columns)))
        return list(out)

    def by_table(self, table: list[float], codes: bytes, scales: list[float]) -> list[float]:
        out = floats([0.0] * len(codes))
        of = self.library.cdequantize_blockwise_cpu_fp32
        of(floats(table), codes, floats(scales), out, *(ctypes.c_longlong(n) for n in (OUTER_BLOCK, len(codes))))
        return list(out)

    def levels(self) -> list[float]:
        """What each code stands for, under a scale of 1: two codes to a byte, the first in the high half."""
        codes = bytes(range(0x01, 0x100, 0x22)) + bytes(24)
        return self.nf4(codes, [1.0], 1, 64)[:16]


def rounded(values) -> list[float]:
    return list(floats(list(values)))


def write(path: pathlib.Path, tensors: dict) -> None:
    header, data = {}, b""
    for name, (dtype, shape, content) in sorted(tensors.items(), key=lambda item: (item[1][0] != "F32", item[0])):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "tests/golden/nf4")
    args = parser.parse_args()
    library, rng = Library(args.library), random.Random(25)

    def f32(values):
        return ("F32", [len(values)], struct.pack(f"<{len(values)}f", *values))

    def u8(content, shape=None):
        return ("U8", shape or [len(content)], content)

    tensors, expected = {}, {}
    levels = library.levels()
    assert levels == sorted(levels) and levels[0] == -1 and levels[15] == 1, levels
    for name, (rows, columns) in SHAPES.items():
        codes, num_scales = rng.randbytes(rows * columns // 2), rows * columns // BLOCK
        at = f"{name}.weight"
        state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [rows, columns]}
        if name == "twice":
            table, of_scales = rounded(sorted(rng.uniform(-1, 1) for _ in range(256))), rng.randbytes(num_scales)
            outer = rounded(rng.uniform(0.01, 0.1) for _ in range(-(-num_scales // OUTER_BLOCK)))
            scales = rounded(scale + OFFSET for scale in library.by_table(table, of_scales, outer))
            state |= {"nested_blocksize": OUTER_BLOCK, "nested_dtype": "float32", "nested_offset": OFFSET}
            tensors |= {f"{at}.absmax": u8(of_scales), f"{at}.nested_quant_map": f32(table)}
            tensors[f"{at}.nested_absmax"] = f32(outer)
        else:
            scales = rounded(rng.uniform(0.01, 0.2) for _ in range(num_scales))
            tensors[f"{at}.absmax"] = f32(scales)
        tensors[at] = u8(codes, [len(codes), 1])
        tensors[f"{at}.quant_map"] = f32(levels)
        tensors[f"{at}.quant_state.bitsandbytes__nf4"] = u8(json.dumps(state).encode())
        expected[name] = ("F32", [rows, columns], f32(library.nf4(codes, scales, rows, columns))[2])
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps({"quantization_config": config}, indent=1) + "\n")
    write(args.out / "model.safetensors", tensors)
    write(args.out / "golden.safetensors", expected)


if __name__ == "__main__":
    main()
