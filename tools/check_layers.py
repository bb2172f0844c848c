#!/usr/bin/env python3
"""Checks the include graph of src/ against the layers of ARCHITECTURE.md: a file may include its own folder and the
folders listed for it, nothing else. And that above the backends nobody reads or writes what a tensor's address points
to, but for those named here. Exits 1 and lists every line that should not be."""

import pathlib
import re
import sys

# Folder -> folders it may include, lower layers included. Sub-folders of backend stand for themselves.
UP_TO_DEVICE = {"base", "tensor", "device"}
UP_TO_BACKEND = UP_TO_DEVICE | {"backend"}
UP_TO_KV = UP_TO_BACKEND | {"kv"}
UP_TO_MODEL = UP_TO_KV | {"weights", "model"}
UP_TO_ENGINE = UP_TO_MODEL | {"text", "grammar", "engine"}
LAYERS = {
    "base": set(),
    "tensor": {"base"},
    "device": {"tensor", "base"},
    "text": {"base"},
    "grammar": {"text", "base"},
    "backend": UP_TO_DEVICE,
    "backend/ref": UP_TO_BACKEND,
    "backend/cpu": UP_TO_BACKEND,
    "backend/cuda": UP_TO_BACKEND,
    "weights": {"tensor", "base"},
    "kv": UP_TO_BACKEND | {"text"},
    "model": UP_TO_KV | {"weights"},
    "engine": UP_TO_MODEL | {"text"},
    "server": UP_TO_ENGINE,
    "bench": UP_TO_ENGINE | {"backend/cpu"},
    "data": {"text", "base"},
    "grad": UP_TO_MODEL | {"backend/cpu"},
    "planner": UP_TO_ENGINE | {"grad", "data"},
    "eval": UP_TO_ENGINE | {"planner", "data", "bench"},
    "report": {"eval", "planner", "text", "kv", "base"},
    "loadgen": {"server", "report", "data", "text", "base"},
}
# What headwise_core is made of: an embedder links it without the libraries above.
CORE = UP_TO_ENGINE | {"backend/ref", "backend/cpu", "backend/cuda"}
# Files that put backends together: the only ones in `backend` that know the implementations.
COMPOSERS = {"backend/all_backends.cc"}
# Public headers, in angle brackets, are declared for everyone.
INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"')
# They include each other and the standard library: nothing else is installed with them.
PUBLIC_INCLUDE = re.compile(r"^\s*#include\s+<(headwise/\w+\.h|\w+)>")


# An address of a tensor made into one of numbers, or given to what converts them.
DEREFERENCE = re.compile(
    r"static_cast<[^>]*\*>\((?:\w|\.|->|\(\))*\b(?:data|planes\[\w+\])\)|\b(?:LoadAsF32|StoreF32As|ToF32|FromF32)\([^;]*\.data\b(?!\()")
BELOW = {"base", "tensor", "device", "backend", "backend/ref", "backend/cpu", "backend/cuda", "weights", "text"}
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


def wrong_public_includes(folder):
    for path in sorted(folder.glob("*.h")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("#include") and not PUBLIC_INCLUDE.match(line):
                yield f"{path.name}:{number}: {line.strip()}: expected <headwise/...> or a standard header"


def main():
    source = pathlib.Path(__file__).resolve().parent.parent
    root = source / "src"
    wrong = list(wrong_public_includes(source / "include" / "headwise"))
    wrong += [f"LAYERS: {folder} is part of core and may not include {', '.join(sorted(LAYERS[folder] - CORE))}"
              for folder in sorted(CORE) if LAYERS[folder] - CORE]
    num_files = 0
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
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
