"""Templates and contexts drawn at random, for make_template_golden.py."""

NAMES = ["a", "b", "c", "xs", "d", "s", "i", "f", "missing", "x", "y"]
WORDS = ["", "a", "Ab c", " lead", "trail ", "é日😀", "x\ny", "<|m|>", "it's", '"q"', "0", "12", "-3.5", "\\n", "A-b_C", "\t", "ſß"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "list", "string", "int", "float", "abs", "round", "first", "last", "reverse|list", "sort", "unique|list", "join", "join('-')", "tojson", "tojson(indent=2)", "default('D')", "default('D', true)", "replace('a', 'b')", "e", "safe", "items|list", "dictsort", "min", "max", "sum", "map('string')|list", "map('upper')|list", "map(attribute='a')|list", "select|list", "reject|list", "select('string')|list", "selectattr('a')|list", "batch(2)|list", "slice(2)|list", "indent", "indent(2, true)", "wordcount", "truncate(4)", "center(9)", "count", "tojson(sort_keys=true, separators=(',', ':'))", "groupby('a')|list", "map('length')|list", "select('odd')|list", "rejectattr('a', 'defined')|list"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "callable", "true", "false", "odd", "even", "lower", "upper", "divisibleby 3", "eq 1", "ne 'a'", "lt 3", "ge 2", "in xs", "sameas none", "in 'abc'"]
METHODS = ["strip()", "lstrip()", "rstrip('a')", "split()", "split('a')", "split(' ', 1)", "rsplit('-', 1)", "splitlines()", "upper()", "lower()", "title()", "capitalize()", "swapcase()", "startswith('a')", "endswith(('a', ' '))", "replace('a', 'xx')", "find('b')", "rfind('b')", "count('a')", "join(xs)", "isdigit()", "isalpha()", "isupper()", "get('a')", "get('zz', 1)", "items()|list", "keys()|list", "values()|list", "index('a')", "removeprefix('a')", "partition('b')", "zfill(5)", "format(1, 'x')", "center(6, '*')", "append(1)", "pop()", "rjust(4)"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or", "**"]


def random_value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind in (1, 2):
        return rng.choice([0, 1, 2, 3, 7, -1, -5, 10, 100, 2.5, -0.5, 1e-7, 1e20, 0.1])
    if kind < 6:
        return rng.choice(WORDS)
    if kind < 8:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "b", "c", "k k", "items", "é", "1"]): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def random_context(rng):
    context = {name: random_value(rng) for name in ["a", "b", "c"]}
    context["xs"] = [random_value(rng, 2) for _ in range(rng.randrange(5))]
    context["d"] = {key: random_value(rng, 1) for key in rng.sample(["a", "b", "c", "x", "y"], rng.randrange(5))}
    context["s"] = "".join(rng.choices(WORDS, k=rng.randrange(4)))
    context["i"] = rng.randrange(-5, 20)
    context["f"] = rng.choice([0.0, 1.5, -2.25, 1e16, 3.0])
    return context


def literal(rng):
    kind = rng.randrange(8)
    if kind < 3:
        return str(rng.choice([0, 1, 2, 3, 5, 10, 1.5, 0.25, 100]))
    if kind < 6:
        return "'" + rng.choice(WORDS).replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    return rng.choice(["none", "true", "false", "[]", "{}", "()"])


def key(rng):
    """Of a dict: a list would be an error before anything is run, which is not followed here."""
    return rng.choice(["'a'", "'b'", "1", "1.0", "true", "none", "'é'", "(1, 2)"])


def expression(rng, depth=0):
    if depth > 3 or rng.random() < 0.25:
        return rng.choice(NAMES) if rng.random() < 0.6 else literal(rng)

    def inner():
        return expression(rng, depth + 1)

    kind = rng.randrange(15)
    if kind < 4:
        return f"{inner()} {rng.choice(OPERATORS)} {inner()}"
    if kind == 4:
        return f"({inner()} {rng.choice(OPERATORS)} {inner()})"
    if kind in (5, 6):
        return f"{inner()} | {rng.choice(FILTERS)}"
    if kind == 7:
        return f"({inner()}) | {rng.choice(FILTERS)} | {rng.choice(FILTERS)}"
    if kind == 8:
        return f"{inner()} is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind == 9:
        return f"{rng.choice(NAMES)}.{rng.choice(METHODS)}"
    if kind == 10:
        return f"{inner()} if {inner()}" + (f" else {inner()}" if rng.random() < 0.8 else "")
    if kind == 11:
        return "[" + ", ".join(inner() for _ in range(rng.randrange(4))) + "]"
    if kind == 12:
        bounds = [rng.choice(["", "1", "-2", "0", "3", "i"]) for _ in range(2)]
        step = rng.choice(["", ":", ":2", ":-1"])
        return f"{rng.choice(NAMES)}[{bounds[0]}:{bounds[1]}{step}]"
    if kind == 13:
        return rng.choice([f"{rng.choice(NAMES)}[{inner()}]", f"{rng.choice(NAMES)}.{rng.choice('abxy')}", f"(-{inner()})", f"(not {inner()})"])
    return "{" + ", ".join(f"{key(rng)}: {inner()}" for _ in range(rng.randrange(3))) + "}"


def text(rng):
    return rng.choice(["", " ", "\n", "  \n", "t", "\n  ", "- ", "é\n\n", "\t"])


def tag(rng, body, output=False):
    left, right = rng.choice(["", "", "-", "+"]), rng.choice(["", "", "-", "+"])
    if output:
        return "{{" + left.replace("+", "") + " " + body + " " + right.replace("+", "") + "}}"
    return "{%" + left + " " + body + " " + right + "%}"


def statement(rng, depth):
    kind = rng.randrange(14) if depth < 3 else 0
    e = lambda: expression(rng, 1)  # noqa: E731
    inside = lambda: body(rng, depth + 1)  # noqa: E731
    if kind < 5:
        return tag(rng, expression(rng), True)
    if kind < 7:
        middle = tag(rng, f"elif {e()}") + inside() if rng.random() < 0.3 else ""
        otherwise = tag(rng, "else") + inside() if rng.random() < 0.5 else ""
        return tag(rng, f"if {e()}") + inside() + middle + otherwise + tag(rng, "endif")
    if kind < 9:
        target = rng.choice(["x", "x", "x", "x, y"])
        items = rng.choice(["xs", "d", "d.items()", "s", "range(3)", "[1, 'a', none]", "a", "d|dictsort", e()])
        condition = f" if {rng.choice(['x', 'x is string', 'loop', e()])}" if rng.random() < 0.2 else ""
        loop = rng.choice(["", "{{ loop.index }}", "{{ loop.last }}{{ loop.length }}", "{{ loop.revindex }}{{ loop.first }}", "{% if loop.index > 2 %}{% break %}{% endif %}", "{% if x %}{% continue %}{% endif %}", "{{ loop.nextitem }}", "{{ loop.changed(x) }}"])
        otherwise = tag(rng, "else") + inside() if rng.random() < 0.3 else ""
        return tag(rng, f"for {target} in {items}{condition}") + loop + inside() + otherwise + tag(rng, "endfor")
    if kind == 9:
        return tag(rng, f"set {rng.choice(['x', 'y', 'a', 'xs'])} = {e()}")
    if kind == 10:
        return tag(rng, "set y" + rng.choice(["", " | upper", " | trim"])) + inside() + tag(rng, "endset")
    if kind == 11:
        return tag(rng, "macro m(x, y='dy')") + inside() + tag(rng, "endmacro") + "{{ m(" + rng.choice(["", "1", "a, b", "y=s", "x=i, y=f", e()]) + ") }}"
    if kind == 12:
        return rng.choice([tag(rng, f"with x = {e()}") + inside() + tag(rng, "endwith"), tag(rng, "filter " + rng.choice(["upper", "trim", "replace('a', 'b')", "indent"])) + inside() + tag(rng, "endfilter"), "{#" + rng.choice(["", "-", "+"]) + " c " + rng.choice(["", "-", "+"]) + "#}"])
    return tag(rng, "set ns = namespace(v=0)") + tag(rng, "for x in xs") + "{% set ns.v = " + rng.choice(["ns.v + 1", "x", "[ns.v, x]", "ns.v ~ x"]) + " %}" + tag(rng, "endfor") + "{{ ns.v }}"


def body(rng, depth):
    return "".join(text(rng) + statement(rng, depth) for _ in range(rng.randrange(1, 3))) + text(rng)


def random_template(rng):
    if rng.random() < 0.5:
        return "{{ " + expression(rng) + " }}"
    return body(rng, 0)
