#!/usr/bin/env python3
"""Checks the include graph of src/ against the layers of ARCHITECTURE.md: a file may include its own folder and the
folders listed for it, nothing else. And that above the backends nobody reads or writes what a tensor's address points
to, but for those named here. Exits 1 and lists every line that should not be."""

import pathlib
import re
import sys

# Folder -> folders it may include, lower layers included. Sub-folders of backend stand for themselves.
LAYERS = {
    "base": set(),
    "tensor": {"base"},
    "device": {"tensor", "base"},
    "text": {"base"},
    "backend": {"device", "tensor", "base"},
    "backend/ref": {"backend", "tensor", "base"},
    "backend/cpu": {"backend", "tensor", "base"},
    "weights": {"tensor", "base"},
    "data": {"text", "base"},
    "kv": {"backend", "tensor", "base"},
    "model": {"kv", "weights", "backend", "tensor", "base"},
    "grad": {"model", "kv", "weights", "backend", "backend/cpu", "tensor", "base"},
    "engine": {"model", "text", "kv", "weights", "backend", "tensor", "base"},
    "planner": {"engine", "grad", "data", "model", "text", "kv", "weights", "backend", "tensor", "base"},
    "eval": {"planner", "engine", "data", "model", "text", "kv", "weights", "backend", "tensor", "base"},
    "report": {"eval", "planner", "text", "kv", "base"},
}
# Files that put backends together: the only ones in `backend` that know the implementations.
COMPOSERS = {"backend/all_backends.cc"}
# Public headers are declared for everyone.
INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"')


# An address of a tensor made into one of numbers, or given to what converts them.
DEREFERENCE = re.compile(
    r"static_cast<[^>]*\*>\((?:\w|\.|->|\(\))*\bdata\)|\b(?:LoadAsF32|StoreF32As|ToF32|FromF32)\([^;]*\.data\b(?!\()")
BELOW = {"base", "tensor", "backend", "backend/ref", "backend/cpu", "weights", "text"}
# By how a path ends. Of a file or a folder.
READS_TENSORS = {
    "grad/": "weights in host memory (OpenPlannerModel)",
    "planner/razor.cc": "the same",
    "model/gguf_model.cc": "host weights, before a backend adopts them",
    "model/families/weight_reader.cc": "the same",
    "engine/quantize.cc": "the same",
    "ops/activations.cc": "an offset to the address",
    "ops/cache.cc": "the same",
    "op_data.cc": "the same",
}


def may_read_tensors(name, folder):
    return folder in BELOW or any(
        name.startswith(known) if known.endswith("/") else name.endswith(known) for known in READS_TENSORS)


def folder_of(path):
    parts = pathlib.PurePosixPath(path).parts
    if parts[0] == "backend" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    wrong = []
    num_files = 0
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        num_files += 1
        name = path.relative_to(root).as_posix()
        folder = folder_of(name)
        if folder not in LAYERS:
            wrong.append(f"{name}: folder {folder} is in no layer")
            continue
        is_test = name.endswith("_test.cc")
        reads_tensors = is_test or may_read_tensors(name, folder)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not reads_tensors and DEREFERENCE.search(line):
                wrong.append(f"{name}:{number}: reads a tensor's memory, which may be a device's")
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1)
            if not (root / target).exists():
                if not (is_test and target.startswith("support/")):
                    wrong.append(f"{name}:{number}: {target} is not in src/")
                continue
            into = folder_of(target)
            if into == folder or into in LAYERS[folder] or name in COMPOSERS:
                continue
            wrong.append(f"{name}:{number}: {folder} must not include {into} ({target})")
    print("\n".join(wrong))
    print(f"{num_files} files, {len(wrong)} lines that should not be")
    return 1 if wrong or num_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
