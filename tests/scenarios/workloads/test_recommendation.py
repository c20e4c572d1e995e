"""The kind of work ``recommendation`` from the command line."""

import json
from pathlib import Path

import pytest

from scenarios.cli import main
from scenarios.workloads.recommendation.running import fraction_for
from tests.scenarios.refusing import refuse


@pytest.fixture
def tables(tmp_path: Path, capsys) -> Path:
    """Return the starter file."""
    path = tmp_path / "tables.yaml"
    with pytest.raises(SystemExit):
        main(["new", str(path), "--workload", "recommendation"])
    capsys.readouterr()
    return path


def test_hit_rates_are_printed_and_written(tables: Path, tmp_path: Path, capsys) -> None:
    """The answer, per table and over time; bytes are rows of 512 bytes."""
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        main([str(tables), "--out", str(out)])
    assert caught.value.code == 0
    assert "countries" in capsys.readouterr().out
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert found["in_bytes_per_batch"] == 512 * found["rows_in_per_batch"]
    assert found["hit_rate"] < found["static_hit_rate"]
    assert [table["num_lookups"] for table in found["tables"]] == [51_200, 204_800, 51_200]
    assert found["tables"][2]["hit_rate"] > found["tables"][0]["hit_rate"]
    over_time = found["over_time"]
    assert [part["first_batch"] for part in over_time] == list(range(150))
    assert sum(part["hit_rate"] for part in over_time[50:]) / 100 == pytest.approx(found["hit_rate"])
    assert "Hit rate over time" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trace.batch_size=20000", "write 0.06"),
        ("tables=[{name: a, num_rows: 5}, {name: a, num_rows: 5}]", "two tables have the name 'a'"),
        ("tables=[{name: a, num_rows: 50000000}, {name: b, num_rows: 5}]", "more than the limit of 50,000,000"),
        ("trace={num_batches: 100000, batch_size: 1000000}", "more than the limit of 2,000,000,000"),
        ("cache.policy=mru", "policy"),
        ("parameter_server={workers: 2, relative_step_times: [1, 2, 3]}", "3 durations for 2 workers"),
        ("cache={served: lookup}", "under lru, not under dataset_frequency"),
        ("parameter_server={slack: 3}", "under asp no worker counts the steps"),
        ("tables=users", "a list belongs here, not 'users' (text)"),
    ],
)
def test_impossible_tables_are_refused(tables: Path, tmp_path: Path, capsys, override: str, words: str) -> None:
    """A batch that the cache cannot hold, and tables or batches beyond the limits, with the remedy."""
    assert words in refuse(capsys, tmp_path, str(tables), "--set", override)


def test_the_proposed_fraction_has_as_many_rows_as_the_batch() -> None:
    """The fraction, as printed and rounded down by the reader, holds the batch."""
    for num_rows in (3, 250_200, 1_000_000, 50_000_000):
        for needed in range(1, num_rows + 1, num_rows // 2_000 + 1):
            printed = float(f"{fraction_for(needed, num_rows):g}")
            assert needed <= int(num_rows * printed) <= num_rows


def test_parameter_servers_are_reported(tables: Path, tmp_path: Path, capsys) -> None:
    """Fractions of rows and bytes per step of a worker: a header of 16 bytes per row, and 512 bytes of elements."""
    out = tmp_path / "out"
    overrides = [
        "parameter_server={workers: 2, read_bound: 3, write_bound: 0}",
        "trace={num_batches: 8, num_unmeasured: 2}",
    ]
    with pytest.raises(SystemExit) as caught:
        main([str(tables), "--out", str(out), *(word for one in overrides for word in ("--set", one))])
    assert caught.value.code == 0
    assert "of them stale" in capsys.readouterr().out
    assert "2 workers under ASP" in (out / "report.html").read_text(encoding="utf-8")
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    servers, unique = found["parameter_server"], found["unique_rows_per_batch"]
    assert servers["pushed_fraction"] == 1
    assert servers["sent_bytes_per_step"] == pytest.approx((16 + 16 + 512) * unique)
    assert servers["received_bytes_per_step"] == pytest.approx((16 + 512) * servers["pulled_fraction"] * unique)
    assert found["in_bytes_per_batch"] == servers["received_bytes_per_step"]
    assert servers["flushed_rows"] == 0


def test_lookups_one_by_one_are_reported(tables: Path, tmp_path: Path, capsys) -> None:
    """Every miss fetches a row, and writes one back once the cache is full; the different rows are those of batches."""
    found = {}
    for served in ("batch", "lookup"):
        out = tmp_path / served
        cache = f"cache={{policy: lru, served: {served}, fraction: 0.004}}"
        with pytest.raises(SystemExit):
            main([str(tables), "--out", str(out), "--set", cache, "--set", "trace.batch_size=128"])
        found[served] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    capsys.readouterr()
    one_by_one = found["lookup"]
    assert one_by_one["hit_rate"] != found["batch"]["hit_rate"]
    assert one_by_one["unique_rows_per_batch"] == found["batch"]["unique_rows_per_batch"]
    missed = 1 - one_by_one["hit_rate"]
    assert one_by_one["rows_in_per_batch"] == pytest.approx(missed * 128 * 6)
    assert one_by_one["rows_out_per_batch"] == pytest.approx(one_by_one["rows_in_per_batch"])


def test_recorded_lookups_are_simulated_and_executed(tmp_path: Path, capsys) -> None:
    """Two tables of a CSV file: hits by hand, the data set's counts as popularity, and an execution that agrees."""
    (tmp_path / "ids.csv").write_text("a,b\n" + "0,0\n0,1\n1,0\n2,0\n" * 2, encoding="utf-8")
    path = tmp_path / "tables.yaml"
    path.write_text(
        "name: recorded\nworkload: recommendation\ntables: [{name: a, num_rows: 4}, {name: b, num_rows: 2}]\n"
        "embedding_dim: 2\ntrace: {file: ids.csv, batch_size: 2, num_batches: 4, num_unmeasured: 0}\n"
        "cache: {fraction: 0.5, policy: lru, warm_up: 0}\n",
        encoding="utf-8",
    )
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        main([str(path), "--out", str(out)])
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert found["hit_rate"] == 5 / 16  # row 0 of b, twice in the second and fourth batch, once in the third
    assert found["static_hit_rate"] == (6 + 4 + 2) / 16
    assert [table["recorded"]["num_different"] for table in found["tables"]] == [3, 2]
    with pytest.raises(SystemExit) as caught:
        main(["execute", str(path), "--check", "--out", str(out)])
    assert caught.value.code == 0
    capsys.readouterr()
    assert "are more than the file's 8" in refuse(capsys, tmp_path, str(path), "--set", "trace.num_batches=5")
    remedy = refuse(capsys, tmp_path, str(path), "--set", "tables=[{name: a, num_rows: 4, zipf: 1}]")
    assert "leave zipf or trace.file out" in remedy


def test_execution_counts_as_simulated_with_equal_weights(tables: Path, tmp_path: Path, capsys) -> None:
    """``execute --check`` trains with torch: the simulated counts, and the weights of tables without a cache."""
    out, small = tmp_path / "out", ["embedding_dim=2", "trace={batch_size: 64, num_batches: 4, num_unmeasured: 2}"]
    with pytest.raises(SystemExit) as caught:
        main(["execute", str(tables), "--check", "--out", str(out), *(w for s in small for w in ("--set", s))])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "equal to the simulated ones in every batch" in printed
    assert "weights have the bits of a training without a cache" in printed
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert found["in_bytes"] == 8 * found["rows_in"] > 0
    assert (found["passed"], found["differing"], found["differing_weights"]) == (True, [], 0)


def test_execution_of_parameter_servers_is_checked(tables: Path, tmp_path: Path, capsys) -> None:
    """Processes count as simulated, and servers apply every update: one per different row of each batch."""
    out, settings = tmp_path / "out", ["embedding_dim=2", "trace={batch_size: 32, num_batches: 3, num_unmeasured: 0}"]
    settings.append("parameter_server={workers: 2, read_bound: 1, write_bound: 1}")
    with pytest.raises(SystemExit) as caught:
        main(["execute", str(tables), "--check", "--out", str(out), *(w for s in settings for w in ("--set", s))])
    assert caught.value.code == 0
    assert "weights have the bits of a training in one process" in capsys.readouterr().out
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (found["passed"], found["differing"], found["differing_weights"]) == (True, [], 0)
    assert (found["dense"], found["unequal_dense_weights"]) == ("all_reduce", 0)
    assert found["received_bytes"] == (16 + 8) * found["pulled_rows"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "cache={policy: lru, served: lookup}"], "needs all rows of a batch together"),
        (["--timing", "step"], "--timing: an execution of recommendation has no such choice"),
        (["--check", "--device", "cuda"], "--check: the bits cannot be compared"),
        (["--set", "embedding_dim=100000"], "the tables need"),
        (["--set", "cache.fraction=0.0001"], "different rows, and the cache holds 25"),
    ],
)
def test_impossible_executions_are_refused(tables: Path, tmp_path: Path, capsys, arguments, words: str) -> None:
    """Options of plans alone, tables beyond the memory, and a cache too small for a batch."""
    assert words in refuse(capsys, tmp_path, "execute", str(tables), *arguments)
