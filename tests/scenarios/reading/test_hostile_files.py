"""Files of a kind that readers do not expect: pipes, numbers that no computer counts, tables that fill the memory."""

import os
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scenarios.calibration import tables
from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.reading.models.model_presets import load_presets
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import plan_of
from scenarios.workloads.workload import with_changes
from sim.engine.running.memory import memory_use
from sim.plan.words.buffer import Scope
from sim.training.steps.countable import MOST_BYTES

LARGE = """\
name: large
cluster: {node: hgx-h100, num_nodes: 1}
model: {family: gpt, num_layers: 1, hidden_size: 4096, num_heads: 32, sequence_length: 2048, vocab_size: 51200}
training: {global_batch_size: 8, microbatch_size: 1}
parallel: {data: {degree: 8}}
"""
A100 = Path(__file__).parents[3] / "costmodels" / "profiles" / "a100.yaml"


def piped(text: str) -> str:
    """Return the name of a pipe that holds a text, as a shell's <(...) makes it; it can be read once."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    return f"/dev/fd/{reader}"


def answer(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """Return what a command prints, which must work."""
    with pytest.raises(SystemExit) as done:
        main([str(arg) for arg in args])
    output = capsys.readouterr()
    assert not done.value.code, output.err
    return re.sub(r"in \S+ (ms|s|us)$", "", output.out, flags=re.MULTILINE)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs pipes with names")
@pytest.mark.parametrize("command", [[], ["show"], ["sweep", "--set", "seed=0,1", "--jobs", "1"], ["schedule"]])
def test_scenario_on_a_pipe_is_answered_as_a_file_is(write, capsys, textbook, command: list[str]) -> None:
    """A pipe is read once, and what would help is found all the same."""
    arguments = [command[:1], command[1:]]
    named = answer(capsys, *arguments[0], write(textbook), *arguments[1])
    assert answer(capsys, *arguments[0], piped(textbook), *arguments[1]) == named
    if not command:
        assert "what would help most: --set " in named


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs pipes with names")
def test_profile_on_a_pipe_is_restated_as_a_file_is(tmp_path, capsys) -> None:
    """The profile whose errors are stated anew is read once, too."""
    (tmp_path / "products.csv").write_text(
        "m,n,k,time_s\n" + "".join(f"512,512,{k},{1e-6 * k}\n" for k in range(64, 900, 9))
    )
    text = A100.read_text(encoding="utf-8")
    (tmp_path / "a.yaml").write_text(text)
    for source, name in ((tmp_path / "a.yaml", "one.yaml"), (piped(text), "two.yaml")):
        answer(capsys, "spread", source, tmp_path / "products.csv", "--out", tmp_path / name)
    assert (tmp_path / "one.yaml").read_text() == (tmp_path / "two.yaml").read_text() != text


def test_change_of_a_file_while_it_is_simulated_changes_no_advice(write, textbook) -> None:
    """What would help is said of the scenario that was read."""
    path = write(textbook)
    scenario = load_scenario(path, ["seed=3"])
    path.write_text("name: [")
    changed = with_changes(scenario, ["training.num_microbatches=16"])
    assert (changed.seed, changed.job.num_microbatches) == (3, 16)
    assert changed.overrides == ("seed=3", "training.num_microbatches=16")


@pytest.mark.parametrize("keys", [
    {"model.hidden_size": 1_000_000, "model.num_heads": 1, "model.sequence_length": 1_000_000,
     "training.microbatch_size": 1_000_000, "training.global_batch_size": 8_000_000},
    {"model.sequence_length": 10_000_000, "training.microbatch_size": 100_000, "training.global_batch_size": 800_000},
])  # fmt: skip
def test_tensors_beyond_64_bits_are_refused(write, capsys, tmp_path, keys: dict[str, int]) -> None:
    """Sizes that are each allowed are refused where a rank's tensors come to more bytes than can be counted."""
    settings = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    path = write(LARGE)
    for command in ([path], ["sweep", path, "--jobs", "1"], ["show", path], ["export", path, "--out", tmp_path / "o"]):
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in (*command, *settings)])
        error = capsys.readouterr().err
        assert done.value.code == 2
        assert "a rank's tensors of all 1 micro-batches come to " in error
        assert "1 EiB is the most that is counted" in error
    assert not (tmp_path / "o").exists()


def test_largest_tensors_are_counted_exactly(write) -> None:
    """Just below the limit, the peak in 64 bits is the sum of the buffers in Python's whole numbers."""
    scenario = load_scenario(write(LARGE), [
        "model.attention=flash", "model.hidden_size=1000000", "model.num_heads=100", "model.sequence_length=30000",
        "training.microbatch_size=50000", "training.global_batch_size=400000",
    ])  # fmt: skip
    [program] = plan_of(scenario).programs
    total = sum(buffer.num_bytes for buffer in program.buffers.values())
    assert MOST_BYTES / 30 < total <= MOST_BYTES
    kept = sum(buffer.num_bytes for buffer in program.buffers.values() if buffer.scope is Scope.PERSISTENT)
    use = memory_use(program)
    assert kept < use.peak_bytes <= total + 512 * len(program.buffers)
    assert sum(use.peak_by_kind_bytes.values()) == use.peak_bytes


@pytest.mark.parametrize(("text", "line", "words"), [
    ("source: a\n", 0, "a file of presets has source:, text, and models:, a mapping"),
    ("models: {}\n", 0, "a file of presets has source:"),
    ("source: [a]\nmodels: {}\n", 0, "a file of presets has source:"),
    ("source: a\nmodels: [b]\n", 0, "a file of presets has source:"),
    ("source: a\nmodels:\n  b: 5\n", 3, "b: a preset is a mapping of keys"),
])  # fmt: skip
def test_bad_presets_are_refused(tmp_path, text: str, line: int, words: str) -> None:
    """A file beside the published models is held to their form."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as raised:
        load_presets(tmp_path)
    assert words in str(raised.value)
    assert raised.value.line == line


def test_measured_table_of_very_many_rows_is_refused_before_it_is_read(tmp_path, monkeypatch) -> None:
    """Of Parquet the end of the file says how many rows and bytes there are; of CSV one row too many is read."""
    frame = pd.DataFrame({"m": [64] * 50, "n": [64] * 50, "k": [64] * 50, "time_s": [1e-6] * 50})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.setattr(tables, "_MAX_ROWS", 49)
    for name, words in (
        ("a.parquet", "50 rows, 0 MiB once unpacked; the limits are 49 rows and 512 MiB"),
        ("a.csv", "more than 49 rows"),
    ):
        with pytest.raises(ScenarioError, match=words):
            tables.read_samples(tmp_path / name, None)
    monkeypatch.setattr(tables, "_MAX_BYTES", 64)
    for name in ("a.parquet", "a.csv"):
        with pytest.raises(ScenarioError, match="larger than 0 MiB, the most that is read"):
            tables.read_samples(tmp_path / name, None)


def test_measured_table_of_long_cells_is_refused_before_it_is_read(tmp_path, monkeypatch) -> None:
    """A Parquet file that is small because its cells repeat themselves is counted as it will be unpacked."""
    monkeypatch.setattr(tables, "_MAX_BYTES", 1 << 20)
    pd.DataFrame({"m": ["1" * (2 << 20)], "n": [1], "k": [1], "time_s": [1.0]}).to_parquet(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20
    with pytest.raises(ScenarioError, match="1 rows, 2 MiB once unpacked; the limits are 5,000,000 rows and 1 MiB"):
        tables.read_samples(tmp_path / "a.parquet", None)


def test_strange_cells_of_measured_tables_are_shown(tmp_path, capsys) -> None:
    """NUL characters in a CSV are shown as what they are."""
    path = tmp_path / "a.csv"
    path.write_text("m,n,k,time_s\n1,1\0,1,1\n")
    with pytest.raises(SystemExit) as done:
        main(["residuals", str(path), "--node", "hgx-h100"])
    assert done.value.code == 2
    assert r"n: row 1 has '1\x00'" in capsys.readouterr().err


def test_two_columns_of_one_name_are_refused(tmp_path) -> None:
    """Parquet takes them; which of the two would count is not to be guessed."""
    frame = pd.DataFrame([[64, 64, 64, 1e-6, 64]], columns=["m", "n", "k", "time_s", "m"])
    columns = [pa.array(frame.iloc[:, place]) for place in range(5)]
    pq.write_table(pa.Table.from_arrays(columns, names=list(frame.columns)), tmp_path / "a.parquet")
    with pytest.raises(ScenarioError, match="m: two columns have this name"):
        tables.read_samples(tmp_path / "a.parquet", None)


def test_pipe_where_a_table_belongs_is_no_file(tmp_path) -> None:
    """Nothing is waited for, and the message does not deny that something is there."""
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(ScenarioError, match="this is not a file"):
        tables.read_samples(tmp_path / "a.csv", None)
