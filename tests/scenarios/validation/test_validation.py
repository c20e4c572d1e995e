"""Published measurements are predicted within their thresholds, and a table that is wrong says so."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.summaries.measured.validation import ValidatedTable
from scenarios.validation import published
from scenarios.validation.accuracy import row_line, verdict_line
from traces.errors import TraceError
from traces.published import published_tables

ACCURACY = Path(__file__).parents[3] / "docs" / "accuracy.md"
TABLES = {path.stem: path for path in published_tables()}

SIDECAR = """\
citation: A paper
source: Its table
licence: facts
row: model
base:
  name: Small
  cluster: {node: dgx-a100-80g, num_nodes: 1}
  model: {family: gpt, num_layers: 2, hidden_size: 512, num_heads: 8, sequence_length: 128, vocab_size: 1024}
  training: {global_batch_size: 8, microbatch_size: 1, precision: bf16}
  parallel: {data: {degree: auto}}
columns: {model.num_layers: layers}
measured: {prediction: iteration_time_s, unit: ms, columns: [{column: time}]}
thresholds: {mean: 0.05, worst: 0.12}
"""
TEXTBOOK = """\
citation: Nobody
source: Arithmetic
licence: facts
row: model
base:
  name: Textbook
  model: {family: delay, forward: 1 s, backward_input: 1 s, backward_weight: 1 s}
  training: {num_microbatches: 4}
  parallel: {pipeline: {degree: 4, schedule: gpipe}}
columns: {training.num_microbatches: layers}
measured: {prediction: iteration_time_s, unit: s, columns: [{column: time}]}
thresholds: {mean: 0.05, worst: 0.12}
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a sidecar, with replacements, and its rows."""

    def write_table(rows: str, *replacements: tuple[str, str], text: str = SIDECAR) -> Path:
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "table.yaml").write_text(text, encoding="utf-8")
        (tmp_path / "table.csv").write_text(f"model,layers,time\n{rows}", encoding="utf-8")
        return tmp_path / "table.yaml"

    return write_table


def only_table(*args: Any) -> ValidatedTable:
    """Return the validation of one table."""
    (table,) = published.run(*args).tables
    return table


QUICK = {
    "clover_large": "^(Code|Math|RA),.*,(4|48),",
    "services_tpot": "^llama-3-70b,vllm,hgx-h200,.*,(4|8),inferencemax",
    "services_ttft": "^llama-3-70b,vllm,hgx-h200,[12],.*,(4|8|16),inferencemax",
    "llama3_405b_h100": "^8192,",
    "megatron_deepspeed_a100_multi_node": r"^\d+,[\d.]+,64,512,(2|8),",
    "megatron_deepspeed_a100_single_node": r"^\d*[08]4,",
    "megatron_sc21_table1": "^(1.7B|7.5B|39B|76B),",
    "optimus_weak_scaling": "^.d,(4|16),",
    "pollux_workload_6": "^(tiresias,1|optimus,0.5),",
    "sequence_parallel_activation_memory": "^(22B|175B),",
    "sequence_parallel_table5": "^22B,",
    "terapipe_table1": "GPT3-13B,",
    "tesseract_strong_scaling": "^(1d|2.5d),64,",
    "terapipe_slices": "GPT3-44B.*,4,1",
    "zero_bubble_rates": "1.5B,.*,24,",
    "zero_bubble_rates_searched": "1.5B,.*,24,",
}
"""Of tables that take long, the rows that are predicted here; ``simulate validate`` predicts all."""


PROMISED = {
    "llama3_405b_h100": (0.04, 0.1),
    "megatron_sc21_table1": (0.04, 0.1),
    "sequence_parallel_table5": (0.04, 0.1),
    "mlperf_gpt3_h100": (0.12, 0.12),
    "megatron_b200_step_time": (0.05, 0.12),
    "bian3d_weak_scaling": (0.15, 0.25),
    "megatron_b200_deepseek_step_time": (0.05, 0.08),
    "clover_small": (0.08, 0.2),
    "pollux_workload_6": (0.001, 0.001),
    "services_tpot": (0.13, 1.7),
    "services_ttft": (0.25, 0.65),
}
"""Mean and worst of tables of steps that promise otherwise than most of those that are predicted whole, or in part."""


@pytest.mark.parametrize("name", sorted(TABLES))
def test_published_measurements_are_predicted(name: str, tmp_path: Path) -> None:
    """Every packaged table is predicted within its thresholds, none looser than promised, as docs/accuracy.md says."""
    rows = published.load_table(TABLES[name]).data
    if name in QUICK:
        header, *lines = rows.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = tmp_path / "quick.csv"
        rows.write_text(header + "".join(line for line in lines if re.search(QUICK[name], line)), encoding="utf-8")
    table = only_table((TABLES[name],), rows if name in QUICK else None)
    assert table.passed
    mean, worst = {"activation_bytes": (0.02, 0.02), "collective_time_s": (0.2, 0.9)}.get(
        table.prediction, PROMISED.get(name, (0.2, 0.5) if name in QUICK else (0.04, 0.1))
    )
    assert table.thresholds.mean <= mean
    assert table.thresholds.worst <= worst
    assert table.mean_absolute_error == pytest.approx(sum(abs(row.error) for row in table.rows) / len(table.rows))
    assert table.worst == max(abs(row.error) for row in table.rows)
    page = ACCURACY.read_text(encoding="utf-8")
    if name not in QUICK:
        assert verdict_line(table) in page.splitlines()
    if not table.groups:
        assert {row_line(row) for row in table.rows} <= set(rows_of(page, name))


def rows_of(page: str, name: str) -> list[str]:
    """Return the lines of a page that are rows of a table."""
    _, *parts = re.split(rf"^`{name}`, .*\n\n.*\n.*\n", page, flags=re.MULTILINE)
    return parts[0].split("\n\n")[0].splitlines() if parts else []


@pytest.mark.parametrize("name", sorted(TABLES))
def test_verdicts_follow_from_the_rows_of_the_page(name: str) -> None:
    """Number of rows, mean and worst error of a verdict are those of the rows that docs/accuracy.md shows."""
    page = ACCURACY.read_text(encoding="utf-8")
    rows = rows_of(page, name)
    [verdict] = re.findall(rf"^\| `{name}` \| (\d+) \| ([\d.]+)% \| ([\d.]+)% \|", page, re.MULTILINE)
    if not rows:
        assert f"| `{name}` | " in page.split("Rows by group")[1]
        return
    errors = [abs(float(row.split(" | ")[-1].rstrip("% |"))) for row in rows]
    assert int(verdict[0]) == len(errors)
    assert float(verdict[1]) == pytest.approx(sum(errors) / len(errors), abs=0.1)
    assert float(verdict[2]) == pytest.approx(max(errors), abs=0.1)


def test_the_packaged_tables_are_the_promised_ones() -> None:
    """Ten rows of SC21's table 1, eight times and eight activation memories of the sequence-parallel paper."""
    rows = {name: len(published.load_table(path).rows) for name, path in TABLES.items()}
    assert rows["megatron_sc21_table1"] == 10
    assert rows["sequence_parallel_table5"] == rows["sequence_parallel_activation_memory"] == 8


def test_other_rows_take_the_same_mapping(tmp_path: Path) -> None:
    """``data`` predicts other rows: half the layers on the same devices keep about half the activations."""
    text = TABLES["sequence_parallel_activation_memory"].with_suffix(".csv").read_text(encoding="utf-8")
    header, first = text.splitlines()[:2]
    (tmp_path / "other.csv").write_text(f"{header}\n{first.replace(',48,', ',24,')}\n", encoding="utf-8")
    table = only_table((TABLES["sequence_parallel_activation_memory"],), tmp_path / "other.csv")
    assert [row.error for row in table.rows] == pytest.approx([-0.5, -0.5], abs=0.01)
    assert not table.passed


def test_errors_are_fractions_of_what_was_measured(write: Write) -> None:
    """A time that is exactly predicted has no error; twice and half of it are off by -1/2 and 1."""
    path = write("small,4,1\n", text=TEXTBOOK)
    exact = only_table((path,)).rows[0].predicted
    assert exact == 3 * (4 + 3)
    rows = only_table((write(f"a,4,{exact}\nb,4,{2 * exact}\nc,4,{exact / 2}\n", text=TEXTBOOK),)).rows
    assert [row.error for row in rows] == pytest.approx([0.0, -0.5, 1.0])
    assert [row.measured for row in rows] == pytest.approx([exact, 2 * exact, exact / 2])


@pytest.mark.parametrize(
    ("factors", "passed"), [((1.04, 0.97), True), ((1.08, 1.09), False), ((1.14, 1.0, 1.0, 1.0), False)]
)
def test_mean_and_worst_both_decide(write: Write, factors: tuple[float, ...], passed: bool) -> None:
    """A table fails past its mean error, and past the worst row even where the mean is fine."""
    rows = "".join(f"r{index},4,{21 / factor}\n" for index, factor in enumerate(factors))
    assert only_table((write(rows, text=TEXTBOOK),)).passed is passed


def test_units_convert_what_is_predicted(write: Write) -> None:
    """A prediction is given in the table's unit."""
    milliseconds = only_table((write("small,2,1\n"),)).rows[0].predicted
    seconds = only_table((write("small,2,1\n", ("unit: ms", "unit: s")),)).rows[0].predicted
    assert milliseconds == pytest.approx(1000 * seconds)


@pytest.mark.parametrize("prediction", ["tokens_per_s", "model_flop_per_s_per_device", "peak_memory_bytes"])
def test_other_results_can_be_compared(write: Write, prediction: str) -> None:
    """Rates and peak memory are predicted from the same scenario as times."""
    unit = {"tokens_per_s": "tokens/s", "model_flop_per_s_per_device": "TFLOP/s", "peak_memory_bytes": "MiB"}[
        prediction
    ]
    path = write("small,2,1\n", ("iteration_time_s, unit: ms", f"{prediction}, unit: {unit}"))
    assert only_table((path,)).rows[0].predicted > 0


@pytest.mark.parametrize(
    ("rows", "replacement", "problem"),
    [
        ("small,0,1\n", ("Small", "Small"), "row 'small'"),
        ("small,2,1\n", ("hidden_size: 512", "hidden_size: 510"), "model.num_heads"),
        ("small,2,1\n", ("vocab_size", "vocab"), "model.vocab"),
        ("small,2,1\n", ("model.num_layers: layers", "name.first: layers"), "name holds 'Small'"),
        ("small,2,1\n", ("dgx-a100-80g", "dgx-a100"), "cluster.node"),
    ],
)
def test_row_that_is_no_scenario_is_refused(
    write: Write, rows: str, replacement: tuple[str, str], problem: str
) -> None:
    """A row whose keys make no scenario is refused, naming row and key."""
    with pytest.raises(ScenarioError, match=r"table\.csv:2: row 'small'") as raised:
        published.run((write(rows, replacement),))
    assert problem in str(raised.value)


def test_textbook_workload_has_no_rates(write: Write) -> None:
    """A rate per device is refused where there is no device."""
    path = write("small,4,1\n", ("iteration_time_s, unit: s", "tokens_per_s, unit: tokens/s"), text=TEXTBOOK)
    with pytest.raises(ScenarioError, match="a textbook workload has no tokens_per_s"):
        published.run((path,))


def test_missing_table_is_refused(tmp_path: Path) -> None:
    """A table that is not there is bad input."""
    with pytest.raises(TraceError, match="there is no such file"):
        published.run((tmp_path / "none.yaml",))


def test_command_fails_past_the_thresholds(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and FAILED for wrong data, 0 for right data, 2 for a bad table; --json prints the summary."""
    path = str(write("small,4,42\n", text=TEXTBOOK))
    assert _exit_code("validate", path) == 1
    assert (
        "mean absolute error 50.0 % (at most 5.0 %), worst 50.0 % (at most 12.0 %): FAILED" in capsys.readouterr().out
    )
    (Path(path).parent / "right.csv").write_text("model,layers,time\nsmall,4,21\n", encoding="utf-8")
    assert _exit_code("validate", path, "--data", str(Path(path).parent / "right.csv"), "--json") == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert (table["table"], table["rows"][0]["predicted"], table["passed"]) == ("table", 21.0, True)
    write("small,4,0\n", text=TEXTBOOK)
    assert _exit_code("validate", path) == 2


def test_markdown_is_a_table_of_tables_and_of_rows(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """--markdown prints each table's verdict and rows, leaves with 1 past a threshold, and does not go with --json."""
    path = str(write("small,4,42\n", text=TEXTBOOK))
    assert _exit_code("validate", path, "--markdown") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| `table` | 1 | 50.0% | 50.0% | 5%, 12% |  | FAILED |"
    assert lines[-1] == "| small | 42 | 21 | -50.0% |"
    assert _exit_code("validate", path, "--markdown", "--json") == 2


def _exit_code(*arguments: str) -> int:
    try:
        main(list(arguments))
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0
