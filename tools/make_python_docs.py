#!/usr/bin/env python3
"""Writes the API in docs/python.md from the docstrings of python/headwise: all that follows the line "## API".

Reads the sources alone. Called as make_python_docs.py [--check]; with --check nothing is written, and the status is 1 where
the page is not what it would be.
"""
import ast
import inspect
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "headwise"
PAGE = ROOT / "docs" / "python.md"
MARK = "## API\n"
# Module, and the name that its users know it by.
MODULES = (("llm", "headwise"), ("streams", "headwise"), ("sequence", "headwise"), ("sampling", "headwise"),
           ("head_plan", "headwise"), ("rules", "headwise.rules"),
           ("plan", "headwise.plan"), ("evaluation", "headwise"), ("compare", "headwise.compare"),
           ("lm_eval", "headwise.lm_eval"),
           ("errors", "headwise"))


def exported(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def doc_of(node):
    return inspect.cleandoc(ast.get_docstring(node, clean=False) or "")


def paragraphs(text, names=()):
    """Docstrings as Markdown: a line "name: what it is" of an argument is an item, lines further in belong to it."""
    lines = []
    for line in text.splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name in names:
            lines.append(f"- `{name}`: {rest}")
        else:
            lines.append("  " + line.strip() if line.startswith("    ") and lines and lines[-1][:1] in "- " else line)
    return "\n".join(lines)


def names_of(function):
    arguments = function.args
    each = [*arguments.args, *arguments.kwonlyargs, arguments.kwarg, arguments.vararg]
    return {argument.arg for argument in each if argument is not None}


def signature(function, is_method=False):
    arguments = ast.unparse(function.args)
    if is_method:
        for own in ("self, ", "cls, ", "self", "cls"):
            if arguments.startswith(own):
                arguments = arguments[len(own):]
                break
    returns = f" -> {ast.unparse(function.returns)}" if function.returns is not None else ""
    prefix = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    return f"{prefix}{function.name}({arguments}){returns}"


def has_decorator(function, name):
    return any(name in ast.unparse(decorator) for decorator in function.decorator_list)


def describe_class(node, prefix):
    bases = [ast.unparse(base) for base in node.bases]
    text = f"### `{prefix}.{node.name}`" + (f" ({', '.join(bases)})" if bases else "") + "\n\n"
    if doc_of(node):
        text += paragraphs(doc_of(node)) + "\n\n"
    fields = []
    for place, item in enumerate(node.body):
        if isinstance(item, ast.AnnAssign):
            default = f" = {ast.unparse(item.value)}" if item.value is not None else ""
            said = node.body[place + 1] if place + 1 < len(node.body) else None
            is_doc = isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)
            about = ": " + inspect.cleandoc(said.value.value).replace("\n", " ") if is_doc else ""
            fields.append(f"- `{item.target.id}: {ast.unparse(item.annotation)}{default}`{about}")
    if fields:
        text += "\n".join(fields) + "\n\n"
    for item in node.body:
        if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        is_constructor = item.name == "__init__"
        if (item.name.startswith("_") and not is_constructor) or not doc_of(item):
            continue
        if has_decorator(item, "property"):
            shown = f"{item.name}: {ast.unparse(item.returns)}"
        else:
            shown = signature(item, is_method=True)
            if is_constructor:
                shown = node.name + shown[len("__init__"):].removesuffix(" -> None")
        text += f"```python\n{shown}\n```\n\n{paragraphs(doc_of(item), names_of(item))}\n\n"
    return text


def describe_function(node, prefix):
    about = paragraphs(doc_of(node), names_of(node))
    return f"### `{prefix}.{node.name}`\n\n```python\n{signature(node)}\n```\n\n{about}\n\n"


def describe(module, prefix):
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    names = exported(tree)
    text = ""
    if prefix != "headwise":
        text += f"## `{prefix}`\n\n{doc_of(tree)}\n\n"
    for node in tree.body:
        if getattr(node, "name", None) not in names:
            continue
        if isinstance(node, ast.ClassDef):
            text += describe_class(node, prefix)
        else:
            text += describe_function(node, prefix)
    if module == "plan":  # what it has from elsewhere
        for name, source in (("refit", "_planning"), ("compare", "head_plan")):
            for node in ast.parse((PACKAGE / f"{source}.py").read_text()).body:
                if getattr(node, "name", None) == name:
                    text += describe_function(node, prefix)
    return text


def main():
    page = PAGE.read_text()
    head, mark, _ = page.partition(MARK)
    if not mark:
        sys.exit(f"{PAGE}: found no line \"{MARK.strip()}\"")
    parts = [describe(module, prefix) for module, prefix in MODULES if (PACKAGE / f"{module}.py").exists()]
    wanted = head + MARK + "\nFrom the docstrings, by `tools/make_python_docs.py`.\n\n" + "".join(parts).rstrip() + "\n"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
    elif page != wanted:
        sys.exit("docs/python.md: is not what the docstrings say, expected tools/make_python_docs.py to run")


if __name__ == "__main__":
    main()
