import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.cell_expression import ExpressionError, evaluate, parse_cell, parse_expression
from traces.errors import TraceError
from traces.published import PublishedTable, load_table, published_tables

SIDECAR = """\
citation: A paper
source: Its table
licence: facts
row: model
base: {cluster: {num_nodes: 1}, model: {num_layers: 1}}
columns:
  cluster.num_nodes: gpus / 8
  model.num_layers: layers
  parallel.pipeline.schedule: "'interleaved_1f1b' if virtual else '1f1b'"
measured:
  prediction: iteration_time_s
  unit: ms
  columns:
    - column: full
      label: full recompute
      scenario: {training.recompute: full}
    - {column: none}
thresholds: {mean: 0.05, worst: 0.12}
"""
DATA = "model,gpus,layers,virtual,full,none\nsmall,8,4,,1500,1000\nlarge,64,8,2,2500,\n"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes the sidecar and its CSV, with replacements in either."""

    def write_table(*replacements: tuple[str, str]) -> Path:
        sidecar, data = SIDECAR, DATA
        for old, new in replacements:
            assert old in sidecar or old in data
            sidecar, data = sidecar.replace(old, new), data.replace(old, new)
        (tmp_path / "table.yaml").write_text(sidecar, encoding="utf-8")
        (tmp_path / "table.csv").write_text(data, encoding="utf-8")
        return tmp_path / "table.yaml"

    return write_table


def test_rows_become_overrides_and_measurements_in_si_units(write: Write) -> None:
    """Expressions give scenario keys, each measured column a row of its own, empty cells none."""
    table = load_table(write())
    assert (table.prediction, table.mean_threshold, table.worst_threshold) == ("iteration_time_s", 0.05, 0.12)
    assert [(row.name, row.measured) for row in table.rows] == [
        ("small, full recompute", 1.5),
        ("small", 1.0),
        ("large, full recompute", 2.5),
    ]
    assert table.rows[0].overrides == {
        "cluster.num_nodes": 1,
        "model.num_layers": 4,
        "parallel.pipeline.schedule": "1f1b",
        "training.recompute": "full",
    }
    assert table.rows[2].overrides["cluster.num_nodes"] == 8
    assert table.rows[2].overrides["parallel.pipeline.schedule"] == "interleaved_1f1b"


def test_other_data_is_read_with_the_same_mapping(write: Write, tmp_path: Path) -> None:
    """A CSV with the same columns in another order, and more of them, takes the place of the table's own."""
    other = tmp_path / "other.csv"
    other.write_text("none,full,note,virtual,layers,gpus,model\n7,,x,,2,16,new\n", encoding="utf-8")
    table = load_table(write(), data=other)
    assert [(row.name, row.measured, row.overrides["cluster.num_nodes"]) for row in table.rows] == [("new", 0.007, 2)]


@pytest.mark.parametrize(
    ("old", "new", "where", "rule"),
    [
        ("row: model", "row: modle", "table.csv:1", "modle is missing"),
        ("citation:", "cittation:", "table.yaml:1: cittation", "did you mean citation"),
        ("gpus / 8", "gpus / eight", "table.csv:1", "eight is missing"),
        ("gpus / 8", "gpus ** 8", "table.yaml:7: columns.cluster.num_nodes", "pow, which is not allowed"),
        ("gpus / 8", "open('x')", "table.yaml:7", "call, which is not allowed"),
        ("gpus / 8", "gpus / layers / virtual", "table.csv:2: cluster.num_nodes", "empty cell"),
        ("unit: ms", "unit: GiB", "table.yaml:12: measured.unit", "GiB measures bytes"),
        ("unit: ms", "unit: fortnight", "table.yaml:12: measured.unit", "no unit 'fortnight'"),
        ("iteration_time_s", "happiness", "table.yaml:11: measured.prediction", "no result 'happiness'"),
        ("worst: 0.12", "worst: 12%", "table.yaml:18: thresholds.worst", "fraction"),
        ("mean: 0.05, ", "", "table.yaml:18: thresholds.mean", "fraction"),
        ("small,8,4", "small,8", "table.csv:2", "5 cells"),
        ("1500", "fast", "table.csv:2: full", "not 'fast'"),
        ("1500", "nan", "table.csv:2: full", "not 'nan'"),
        ("licence: facts\n", "", "table.yaml:1", "licence is required"),
        ("licence: facts", "licence: [facts", "table.yaml", "not YAML"),
        ("licence: facts", "licence: &a facts", "table.yaml:3", "anchors"),
        ("licence: facts", f"licence: {'[' * 30}{']' * 30}", "table.yaml:3", "nested"),
        ("licence: facts", "licence: facts\nlicence: more", "table.yaml:4", "written once"),
        ("licence: facts", "licence: 2021-02-30", "table.yaml:3: licence", "'2021-02-30' is neither text nor a number"),
        ("licence: facts", f"licence: {'9' * 5000}", "table.yaml:3: licence", "neither text nor a number"),
    ],
)
def test_bad_tables_are_refused_where_they_are_wrong(write: Write, old: str, new: str, where: str, rule: str) -> None:
    """Each error names file, line, key, rule and remedy."""
    with pytest.raises(TraceError) as refusal:
        load_table(write((old, new)))
    assert where in str(refusal.value)
    assert rule in str(refusal.value)
    assert refusal.value.remedy


def test_pipe_that_nobody_writes_to_is_refused(tmp_path: Path) -> None:
    """A named pipe in the place of a sidecar is read as the empty file that it is, without waiting."""
    path = tmp_path / "table.yaml"
    os.mkfifo(path)
    with pytest.raises(TraceError, match="the file is empty"):
        load_table(path)


def test_missing_files_are_refused(write: Write, tmp_path: Path) -> None:
    """A sidecar or data that is not there, or is a directory, is named."""
    for path, data in ((tmp_path / "no.yaml", None), (tmp_path, None), (write(), tmp_path / "no.csv")):
        with pytest.raises(TraceError, match=r"no such file|directory"):
            load_table(path, data)


@given(st.integers(-100, 100), st.integers(-100, 100), st.integers(1, 100))
def test_expressions_are_exact(a: int, b: int, c: int) -> None:
    """Arithmetic is exact: whole results are whole numbers, and conditions choose."""
    cells = {"a": a, "b": b, "c": c, "empty": None}
    assert evaluate(parse_expression("a * c / c + b - 1"), cells) == a + b - 1
    assert type(evaluate(parse_expression("a * c / c"), cells)) is int
    assert evaluate(parse_expression("a if a > b else b"), cells) == max(a, b)
    assert evaluate(parse_expression("'x' if empty else 'y'"), cells) == "y"
    assert evaluate(parse_expression("[a, a + b] if c else []"), cells) == [a, a + b]
    assert evaluate(parse_expression("a if empty else None"), cells) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "9if a else b", "a.b", "a[0]", "lambda: 1", "a and b", "f'{a}'", "1.5", "a if", "__import__"),
        *("x" * 300, "[[a]]", "a + None"),
    ],
)
def test_expressions_hold_nothing_but_the_allowed_forms(text: str) -> None:
    """Whatever is no arithmetic over columns is refused, before or while it is evaluated."""
    with pytest.raises((ExpressionError, KeyError)):
        evaluate(parse_expression(text), {"a": 1, "b": 2})


def test_cells_are_read_as_what_they_look_like() -> None:
    """Cells are whole numbers, numbers, truth values, text, or empty; grouped and foreign digits are text."""
    cells = [parse_cell(text) for text in ("8", " 8.5 ", "true", "1f1b", "", "  ", "1_000", "\u0665")]
    assert cells == [8, 8.5, True, "1f1b", None, None, "1_000", "\u0665"]


def shipped(name: str) -> PublishedTable:
    """Return a table that comes with meshtwin."""
    return load_table(next(path for path in published_tables() if path.stem == name))


def test_shipped_tables_have_all_published_rows() -> None:
    """Ten rows of SC21 table 1, eight times of table 5, and the activation memory of four models, both ways."""
    counts = {path.stem: len(load_table(path).rows) for path in published_tables()}
    assert counts["megatron_sc21_table1"] == 10
    assert counts["sequence_parallel_table5"] == 8
    assert counts["sequence_parallel_activation_memory"] == 8
    for path in published_tables():
        table = load_table(path)
        assert table.citation
        assert table.source
        assert table.licence


def test_sc21_rows_interleave_where_virtual_stages_are_named() -> None:
    """The schedule follows from layers per virtual stage; world size and degrees multiply."""
    rows = {row.name: row for row in shipped("megatron_sc21_table1").rows}
    assert rows["145B"].overrides["parallel.pipeline.virtual_stages"] == 2
    assert rows["530B"].overrides["parallel.pipeline.virtual_stages"] == 3
    assert rows["76B"].overrides["parallel.pipeline.schedule"] == "interleaved_1f1b"
    assert rows["1T"].overrides["parallel.pipeline.schedule"] == "1f1b"
    assert rows["1T"].overrides["cluster.num_nodes"] == 384
    assert rows["145B"].measured == 148e12


def test_sc21_rates_agree_with_the_published_aggregate_petaflops() -> None:
    """Rate per GPU times GPUs is the aggregate that the same table prints, within its rounding."""
    lines = (published_tables()[0].parent / "megatron_sc21_table1.csv").read_text(encoding="utf-8").splitlines()
    header = lines[0].split(",")
    for line in lines[1:]:
        row = dict(zip(header, line.split(","), strict=True))
        aggregate = float(row["tflops_per_gpu"]) * int(row["gpus"]) / 1000
        assert aggregate == pytest.approx(float(row["agg_pflops"]), rel=0.01)


def test_activation_memory_is_the_papers_formula() -> None:
    """The GiB are s b h (10 + 24/t + 5as/(ht)) and 34 s b h / t per layer in flight (equations 2 and 6)."""
    for row in shipped("sequence_parallel_activation_memory").rows:
        keys = row.overrides
        hidden, heads, tensor = keys["model.hidden_size"], keys["model.num_heads"], 8
        stages, virtual = int(keys["parallel.pipeline.degree"]), int(keys["parallel.pipeline.virtual_stages"])
        interleaving = 1 + (stages - 1) / (stages * virtual) if virtual > 1 else 1.0
        attention = 5 * heads * 2048 / hidden / tensor
        per_token = 10 + 24 / tensor + attention if keys["training.recompute"] == "none" else 34 / tensor
        layers = keys["model.num_layers"] * interleaving
        expected = 2048 * keys["training.microbatch_size"] * hidden * per_token * layers
        assert row.measured == pytest.approx(expected, rel=1e-4)


def test_rows_are_chosen_and_grouped(write: Write) -> None:
    """``where`` keeps rows whose cells equal and whose expression holds; ``group`` and ``row`` name columns."""
    choice = "row: [model, gpus]\nwhere: {equal: {model: [small, large]}, holds: gpus < 64}\ngroup: layers\n"
    table = load_table(write(("row: model\n", choice)))
    assert [(row.name, row.group) for row in table.rows] == [("small 8, full recompute", "4"), ("small 8", "4")]
    table = load_table(write(("row: model\n", "row: model\nwhere: {equal: {gpus: 64}}\n")))
    assert [(row.name, row.group) for row in table.rows] == [("large, full recompute", "")]


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ("where: {equals: {model: small}}\n", "equals"),
        ("where: {holds: model > 1}\n", "where a number is needed"),
        ("where: {equal: {modell: small}}\n", "the column modell is missing"),
        ("where: {equal: {model: tiny}}\n", "no row has a measured value"),
        ("group: kind\n", "the column kind is missing"),
    ],
)
def test_bad_choice_is_refused(write: Write, choice: str, problem: str) -> None:
    """A choice or a group that names no column, holds for no row or has no value is refused."""
    with pytest.raises(TraceError, match=problem):
        load_table(write(("row: model\n", f"row: model\n{choice}")))


def test_one_row_may_be_compared_with_all_others(write: Write) -> None:
    """Of times, the speedup is the row's over the reference's; of rates, the other way round."""
    column = ("    - {column: none}\n", "  speedup_of: {model: large}\n")
    table = load_table(write(column))
    assert table.reference is not None
    assert ([row.name for row in table.rows], table.reference.name) == (
        ["small, full recompute"],
        "large, full recompute",
    )
    assert table.speedup(6.0, 2.0) == 3.0
    rates = ("prediction: iteration_time_s\n  unit: ms", "prediction: tokens_per_s\n  unit: tokens/s")
    assert load_table(write(column, rates)).speedup(2.0, 6.0) == 3.0


@pytest.mark.parametrize(
    ("replacement", "words"),
    [
        (("    - {column: none}\n", "  speedup_of: {model: huge}\n"), "must select one measured value, and 0 have"),
        (("    - {column: none}\n", "  speedup_of: {name: large}\n"), "column name is missing"),
        (("  unit: ms\n", "  unit: ms\n  speedup_of: {model: small}\n"), "and 2 have model small"),
        (("iteration_time_s\n  unit: ms", "peak_memory_bytes\n  unit: B\n  speedup_of: {model: large}"), "is no speed"),
    ],
)  # fmt: skip
def test_a_wrong_reference_is_refused(write: Write, replacement: tuple[str, str], words: str) -> None:
    """The row exists, is one alone, and its value is a speed."""
    with pytest.raises(TraceError, match=words):
        load_table(write(replacement))
