"""Short functions, short files, imports at the top, no hidden state, tests that say what they test."""

import ast
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

REGISTRIES = {
    "scenarios/cli.py", "scenarios/command_line.py", "scenarios/on_use.py",
    "backends/registry.py", "scenarios/results/registry.py", "scenarios/workloads/steps/executing/registry.py",
    "scenarios/workloads/registry.py",
    "scenarios/workloads/steps/forced_routing.py", "scenarios/workloads/training/placing_registry.py",
    "scenarios/report/rendering/notebook.py", "scenarios/sweep/workers.py",
}  # fmt: skip
"""The only files that import on demand, so that ``simulate --help`` and simulating need no heavy library."""

EDGES = {
    "Console": "scenarios/console/terminal.py",
    "stdout.write": "scenarios/console/streams.py",
    "stderr.write": "scenarios/console/streams.py",
    "html.escape": "scenarios/report/charts/hover_text.py",
    "Markup": "scenarios/report/rendering/html_page.py",
    "jinja2": "scenarios/report/rendering/html_page.py",
}
"""What only one file calls, as all that is printed, or put into a page, has to pass it."""

TEMPLATES = Path(__file__).parents[2] / "scenarios" / "report" / "templates"
TAGS = {"scenarios/report/charts/hover_text.py"}
"""The only file with tags in its strings: plotly's own, in the texts of charts."""
TAG = re.compile(
    r"</?(a|b|br|canvas|circle|code|dd|details|div|dl|dt|em|extra|figcaption|figure|g|h[1-6]|html|i|img|li|main|ol|p|path|"
    r"pre|script|section|small|span|strong|style|sub|summary|sup|svg|table|tbody|td|text|th|thead|title|tr|u|ul)(?=[\s>/])"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Nodes = Sequence[ast.AST]


def body_lines(function: Function) -> int:
    """Return the lines of a body, its docstring not counted."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def local_imports(nodes: Nodes) -> list[int]:
    """Return the lines of imports inside functions, and of modules imported by name."""
    spans = [(node.lineno, node.end_lineno or 0) for node in nodes if isinstance(node, Function)]
    named = {"import_module", "__import__"}
    imports = [node.lineno for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    calls = [node.lineno for node in nodes if isinstance(node, ast.Call) and named & {dotted(node.func)[-1]}]
    return sorted({*calls, *(line for line in imports if any(first <= line <= last for first, last in spans))})


def dotted(called: ast.expr) -> tuple[str, ...]:
    """Return the names of ``a.b.c``; the first is empty where a call or another expression stands in its place."""
    if isinstance(called, ast.Attribute):
        return (*dotted(called.value), called.attr)
    return (called.id,) if isinstance(called, ast.Name) else ("",)


def hidden_state(nodes: Nodes) -> list[int]:
    """Return the lines of ``global`` statements and of calls that seed a shared generator."""
    lines = []
    for node in nodes:
        if isinstance(node, ast.Global):
            lines.append(node.lineno)
        if isinstance(node, ast.Call) and dotted(node.func) in {("random", "seed"), ("np", "random", "seed")}:
            lines.append(node.lineno)
    return lines


def calls_at_edges(nodes: Nodes) -> list[tuple[str, int]]:
    """Return the calls, with their lines, of what only one file may call."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Call):
            *_, outer, called = ("", *dotted(node.func))
            found += [(edge, node.lineno) for edge in EDGES if edge in {called, f"{outer}.{called}"}]
        source = node.module if isinstance(node, ast.ImportFrom) else None
        if source in {"html", "jinja2"}:
            found.append(("html.escape" if source == "html" else "jinja2", node.lineno))
    return found


def tags(nodes: Nodes) -> list[int]:
    """Return the lines of strings with HTML in them; docstrings may speak of it."""
    documented = ast.Module | ast.ClassDef | Function
    scopes = [node.body for node in nodes if isinstance(node, documented)]
    words = {id(part.value) for body in scopes for part in body if isinstance(part, ast.Expr)}
    strings = [n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [node.lineno for node in strings if id(node) not in words and TAG.search(node.value)]


def constructor_parameters(nodes: Nodes) -> dict[str, int]:
    """Return the number of parameters of every ``__init__`` by class, self not counted."""
    counts = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    arguments = item.args
                    counts[node.name] = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1
    return counts


def test_functions_are_short(modules) -> None:
    """No body of a function is longer than 60 lines."""
    lengths = [(f"{m.name}:{f.lineno} {f.name}", body_lines(f)) for m in modules for f in m.functions()]
    long = [f"{name}: {length}" for name, length in lengths if length > 60]
    assert long == []


def test_files_are_short(modules) -> None:
    """No file is longer than 600 lines."""
    assert [f"{m.name}: {m.num_lines}" for m in modules if m.num_lines > 600] == []


def test_constructors_take_few_parameters(modules) -> None:
    """No constructor takes more than 8 parameters."""
    many = [f"{m.name}: {c} {n}" for m in modules for c, n in constructor_parameters(m.nodes).items() if n > 8]
    assert many == []


def test_imports_stand_at_the_top(modules) -> None:
    """Only the registries import when they are called; layers could not be checked otherwise."""
    found = {m.name: lines for m in modules if m.in_room and (lines := local_imports(m.nodes))}
    assert {name: lines for name, lines in found.items() if name not in REGISTRIES} == {}


def test_nothing_is_global(modules) -> None:
    """No function of a room changes a module's variables or seeds a shared random generator."""
    assert {m.name: lines for m in modules if m.in_room and (lines := hidden_state(m.nodes))} == {}


def test_what_is_printed_passes_the_edge(modules) -> None:
    """Consoles are opened, streams written and HTML escaped in one place each: names of other people are safe there."""
    found = {m.name: [(edge, line) for edge, line in calls_at_edges(m.nodes) if EDGES[edge] != m.name]
             for m in modules if m.in_room}  # fmt: skip
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_html_is_written_by_templates_alone(modules) -> None:
    """No string of a room holds a tag, and no template lets a value pass as HTML: names of other people are safe."""
    found = {m.name: lines for m in modules if m.in_room and m.name not in TAGS and (lines := tags(m.nodes))}
    assert found == {}
    templates = sorted(TEMPLATES.rglob("*.html"))
    assert len(templates) > 10
    unsafe = re.compile(r"\|\s*(safe|tojson|forceescape)\b|autoescape")
    assert [path.name for path in templates if unsafe.search(path.read_text(encoding="utf-8"))] == []


def test_every_test_says_what_it_tests(modules) -> None:
    """Each test function has a docstring."""
    tests = [(m.name, f) for m in modules if m.name.startswith("tests/") for f in m.functions()]
    assert [
        f"{n}: {f.name}" for n, f in tests if f.name.startswith("test_") and not ast.get_docstring(f, clean=False)
    ] == []


@pytest.mark.parametrize(
    ("code", "find"),
    [
        ("def f():\n    import torch", local_imports),
        ("def f():\n    def g():\n        from a import b", local_imports),
        ("class A:\n    def f(self):\n        return importlib.import_module('a')", local_imports),
        ("def f():\n    global x\n    x = 1", hidden_state),
        ("np.random.seed(0)", hidden_state),
        ("rich.console.Console(width=3)", calls_at_edges),
        ("sys.stdout.write('a')", calls_at_edges),
        ("from html import escape", calls_at_edges),
        ("markupsafe.Markup('a')", calls_at_edges),
        ("from jinja2 import Environment", calls_at_edges),
        ("f'<p class={a}>'", tags),
        ("a = ['<td>', 1]", tags),
    ],
)
def test_the_rules_see_what_they_forbid(code: str, find) -> None:
    """Each search finds an example of what it looks for."""
    assert find(tuple(ast.walk(ast.parse(code))))


def test_lengths_are_counted() -> None:
    """A docstring does not count as body; a body's last statement counts in full."""
    code = textwrap.dedent('''
        class A:
            def __init__(self, a, b, *, c):
                """One.

                Two.
                """
                call(
                    a,
                )
    ''')
    nodes = tuple(ast.walk(ast.parse(code)))
    [function] = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    assert body_lines(function) == 3
    assert constructor_parameters(nodes) == {"A": 3}
