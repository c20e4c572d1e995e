"""Reading YAML into plain values with lines."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import parse_scalar, read_document, read_value


def test_every_key_path_has_the_line_of_its_key(tmp_path: Path) -> None:
    """Nested keys, flow mappings and list items carry the line where they are written."""
    path = tmp_path / "a.yaml"
    path.write_text("a:\n  b: 1\n  c: {d: 2,\n      e: [3,\n 4]}\n")
    document = read_document(path)
    lines = {keys: origin.line for keys, origin in document.origins.items()}
    assert document.data == {"a": {"b": 1, "c": {"d": 2, "e": [3, 4]}}}
    assert lines == {
        (): 0, ("a",): 1, ("a", "b"): 2, ("a", "c"): 3, ("a", "c", "d"): 3,
        ("a", "c", "e"): 4, ("a", "c", "e", 0): 4, ("a", "c", "e", 1): 5,
    }  # fmt: skip


def test_path_that_is_not_written_has_the_origin_of_its_nearest_ancestor(tmp_path: Path) -> None:
    """A missing key is reported at the section that lacks it."""
    path = tmp_path / "a.yaml"
    path.write_text("a:\n\n  b: 1\n")
    document = read_document(path)
    assert document.origin(("a", "b", "c", "d")).line == 3
    assert document.origin(("a", "x")).line == 1
    assert str(document.origin(("x",))) == str(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("-3", -3), ("010", 10), ("1e-3", 1e-3), ("1E6", 1e6), (".5", 0.5), ("8.", 8.0),
        ("true", True), ("False", False), ("~", None), ("", None), ("null", None),
        ("no", "no"), ("on", "on"), ("1:30", "1:30"), ("1_000", "1_000"), ("0x10", "0x10"), ("80 GiB", "80 GiB"),
        ("1f1b", "1f1b"), ("2026-01-01", "2026-01-01"),
    ],
)  # fmt: skip
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    """Numbers, truth values and null are those of YAML 1.2's core schema; all else is text."""
    parsed = parse_scalar(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_quoted_scalars_are_text(tmp_path: Path) -> None:
    """Quotes make text of what would be a number, a truth value or nothing."""
    path = tmp_path / "a.yaml"
    path.write_text("a: '8'\nb: \"true\"\nc: ''\nd: |\n  5\n")
    assert read_document(path).data == {"a": "8", "b": "true", "c": "", "d": "5\n"}


def test_alias_stands_for_its_anchor(tmp_path: Path) -> None:
    """A small alias is expanded, with the lines of its anchor."""
    path = tmp_path / "a.yaml"
    path.write_text("a: &x\n  b: 1\nc: *x\n")
    document = read_document(path)
    assert document.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert document.origins["c", "b"].line == 2


REFUSED = [
    ("", 0, "empty", "simulate new"),
    ("# only a comment\n", 0, "empty", "simulate new"),
    ("---\n...\n", 0, "empty", "simulate new"),
    ("a: [1, 2\nb: 3\n", 2, "not YAML", "spaces"),
    ("a: 'open\n", 2, "not YAML", "spaces"),
    ("a:\n\t- 1\n", 2, "tab", "spaces"),
    ("a: 1\n---\nb: 2\n", 2, "second document", "one document"),
    ("- 1\n- 2\n", 1, "a list", "simulate new"),
    ("just text\n", 1, "text", "simulate new"),
    ("a: 1\nb: 2\na: 3\n", 3, "written twice, first in line 1", "keep one"),
    ("a: 1\n2: b\n", 2, "key 2 is not text", "names"),
    ("a: 1\ntrue: b\n", 2, "key true", "names"),
    ("a: 1\n? [x, y]\n: b\n", 2, "key a list", "names"),
    ("a: !!python/object:os.system x\n", 1, "tag", "without it"),
    ("a: !mine x\n", 1, "tag", "without it"),
    ("a: *nowhere\n", 1, "names no anchor", "write the value out"),
    ("a: &x [*x]\n", 1, "names no anchor", "write the value out"),
    ("a: " + "[" * 60 + "]" * 60, 1, "more than 50 deep", "right file"),
    ("a: " + "1" * 5000, 1, "too long", "smaller"),
    ("".join(f"k{i}: {i}\n" for i in range(20_000)), 10_000, "more than 20,000", "right file"),
]


@pytest.mark.parametrize(("text", "line", "rule", "remedy"), REFUSED)
def test_text_that_is_no_plain_mapping_is_refused(tmp_path: Path, text: str, line: int, rule: str, remedy: str) -> None:
    """Whatever is not one small mapping of plain values is refused with line, rule and remedy."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read_document(path)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert rule in caught.value.rule
    assert remedy in caught.value.remedy


def test_alias_bomb_is_refused_without_expanding_it(tmp_path: Path) -> None:
    """Nine levels of nine aliases (a billion values) are refused at the level where they pass the limit."""
    levels = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    levels += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(levels))
    with pytest.raises(ScenarioError, match="more than 20,000 values") as caught:
        read_document(path)
    assert caught.value.line == 5


def test_aliases_that_nest_too_deep_are_refused(tmp_path: Path) -> None:
    """Depth counts with aliases expanded: sixty levels by alias are refused like sixty brackets."""
    path = tmp_path / "deep.yaml"
    path.write_text("a0: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(60)))
    with pytest.raises(ScenarioError, match="more than 50 deep"):
        read_document(path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text("abc:-#'\"{}[] \n", max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_reads_what_pyyaml_writes(value: object) -> None:
    """Plain values survive writing with PyYAML and reading here, in block style and in flow style."""
    for flow in (True, False):
        text = yaml.safe_dump({"value": value}, default_flow_style=flow, allow_unicode=True)
        assert read_value(text, "--set") == {"value": value}
