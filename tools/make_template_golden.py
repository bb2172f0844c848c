#!/usr/bin/env python3
"""Writes tests/golden/templates/: what jinja2, set up as transformers does it, makes of the templates in styles/, of
small expressions and of random ones. Needs `pip install jinja2`.

    make_template_golden.py                              writes the golden files
    make_template_golden.py --random 5000 --seed 7 FILE  writes as many random cases, for a comparison at length:
                                                         HEADWISE_TEMPLATE_CASES=FILE jinja_test

The templates are the project's own, in the manner of the published families."""
import argparse
import copy
import datetime
import json
import pathlib
import random
import re

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

import template_cases
import template_random

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/templates"
NOW = datetime.datetime(2024, 7, 4, 15, 9, 7)
MAX_FILE_BYTES = 190_000


class Generation(Extension):
    """{% generation %}: a call of its own body, as in transformers."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def render(source, context):
    """The text, or None where jinja2 raises anything."""
    try:
        # A copy, because the filter `indent` adds a line end to a list before it finds that it is none.
        return ENV.from_string(source).render(**copy.deepcopy(context))
    except Exception:  # Python's own errors count as the template's
        return None


def is_comparable(output):
    """What Python prints of addresses, of integers beyond 64 bits and of lone surrogates is not the template's."""
    if output is None:
        return True
    if re.search(r" object at 0x|<function |<built-in |<bound method |\d{18}|<class |LoopContext", output):
        return False
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in output)


def write(name, content):
    path = OUT / name
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    size = path.stat().st_size
    print(f"{name}: {size} bytes")
    assert size <= MAX_FILE_BYTES, name


def write_styles():
    contexts = template_cases.contexts()
    write("contexts.json", contexts)
    part, content, size = 1, {}, 0
    for path in sorted((OUT / "styles").glob("*.jinja")):
        source = path.read_text()
        cases = {name: render(source, context) for name, context in contexts.items()}
        assert any(cases.values()), path.name
        more = len(json.dumps(cases, ensure_ascii=False).encode())
        if size + more > MAX_FILE_BYTES - 10_000:
            write(f"styles_{part}.json", content)
            part, content, size = part + 1, {}, 0
        content[path.stem] = cases
        size += more
    write(f"styles_{part}.json", content)


def write_expressions():
    context = template_cases.expression_context()
    cases = []
    for source in template_cases.expressions():
        output = render(source, context)
        assert is_comparable(output), (source, output)
        cases.append([source, output])
    write("expressions.json", {"context": context, "cases": cases})
    print(len(cases), "expressions,", sum(output is None for _, output in cases), "of them errors")


def random_cases(seed, count):
    rng = random.Random(seed)
    contexts, cases = [], []
    while len(cases) < count:
        if len(cases) % 25 == 0 and len(contexts) <= len(cases) // 25:
            contexts.append(template_random.random_context(rng))
        source = template_random.random_template(rng)
        output = render(source, contexts[-1])
        if not is_comparable(output) or (output is not None and len(output) > 2000):
            continue
        # Most mistakes are alike: one in four is kept.
        if output is None and rng.random() < 0.75:
            continue
        cases.append([len(contexts) - 1, source, output])
    return {"contexts": contexts, "cases": cases}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("file", nargs="?")
    args = parser.parse_args()
    if args.random:
        pathlib.Path(args.file).write_text(json.dumps(random_cases(args.seed, args.random), ensure_ascii=False))
        return
    write_styles()
    write_expressions()
    write("random.json", random_cases(args.seed, 600))


if __name__ == "__main__":
    main()
