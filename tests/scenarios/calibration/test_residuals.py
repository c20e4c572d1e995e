"""`simulate residuals`: a profile judged by measured tables that nothing is fitted to."""

import json
from collections.abc import Callable
from decimal import Decimal
from math import exp
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from costmodels.calibration.kernels import predict_kernels
from costmodels.calibration.samples import KernelSample, is_held_out
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from scenarios.calibration.tables import HELD_OUT_TABLES, read_samples
from scenarios.command_line import group
from tests.scenarios.calibration.measured_tables import two_systems

NODE = "dgx-a100-80g"
SHAPES = [(m, n, k) for m in (64, 256, 512, 4096) for n in (512, 1024, 2048, 8192) for k in (256, 512, 1024, 8192)]


def run(*args: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(group, ["residuals", *map(str, args)])


def table_of(path: Path, factors: np.ndarray) -> list[float]:
    """Write products that take ``factors`` times what the packaged profile predicts; return the predictions."""
    columns = pd.DataFrame(SHAPES, columns=["m", "n", "k"]).assign(time_s=1.0)
    columns.to_parquet(path)
    samples = [s for s in read_samples(path, None) if isinstance(s, KernelSample)]
    predicted = predict_kernels(samples, load_node(NODE), load_profile("a100"))
    columns.assign(time_s=np.array(predicted) * factors).to_parquet(path)
    return predicted


def families(result: Result) -> dict[float, dict[str, float]]:
    """Return the rows of a result's only family by the length of its calls."""
    assert result.exit_code in (0, 1), result.output
    return {row["longer_than_s"]: row for row in json.loads(result.stdout)["families"]}


def test_errors_are_of_the_measured_time(tmp_path: Path) -> None:
    """Products that take a quarter more than predicted are 20 % off, too fast, whatever their length."""
    path = tmp_path / "products.parquet"
    predicted = table_of(path, np.full(len(SHAPES), 1.25))
    found = families(run(path, "--node", NODE, "--json"))
    assert found[0.0]["calls"] == len(SHAPES)
    for least_s, row in found.items():
        assert row["calls"] == sum(1.25 * seconds > least_s for seconds in predicted)
        for key, value in (("mean_absolute_error", 0.2), ("worst", 0.2), ("percentile_95", 0.2), ("bias", -0.2)):
            assert row[key] == pytest.approx(value), key


def test_intervals_hold_what_errs_as_the_profile_says(tmp_path: Path) -> None:
    """Of products that are off by 1.6 of the profile's deviations all are inside, by 1.7 none."""
    path = tmp_path / "products.parquet"
    spread = load_profile("a100").spread["gemm"]
    predicted = table_of(path, np.ones(len(SHAPES)))
    for deviations, inside in ((1.6, 1.0), (-1.6, 1.0), (1.7, 0.0), (-1.7, 0.0)):
        table_of(path, np.array([exp(deviations * spread.at(seconds)) for seconds in predicted]))
        assert families(run(path, "--node", NODE, "--json"))[0.0]["coverage"] == inside


@pytest.mark.parametrize("written", [str, Decimal, float])
def test_numbers_count_whatever_they_are_written_as(tmp_path: Path, written: Callable[[float], object]) -> None:
    """Sizes and times as text, decimals or floats are the same calls, held out or not."""
    plain, other = tmp_path / "plain.parquet", tmp_path / "other.parquet"
    table_of(plain, np.full(len(SHAPES), 1.25))
    pd.read_parquet(plain).map(written).to_parquet(other)
    ours, theirs = (json.loads(run(path, "--node", NODE, "--held-out", "--json").stdout) for path in (plain, other))
    assert ours["families"] == theirs["families"]
    assert ours["worst"] == theirs["worst"]


def test_families_stand_in_one_order(tmp_path: Path) -> None:
    """Whichever table is named first, products come before collectives."""
    network = tmp_path / "network.csv"
    lines = [f"one,all_reduce,4,1,{1 << p},measured,{1e-5 + (1 << p) / 1e11}" for p in range(10, 20)]
    network.write_text("\n".join(["system,collective,n_gpus,n_nodes,bytes,kind,time_s", *lines]), encoding="utf-8")
    path = tmp_path / "products.parquet"
    table_of(path, np.full(len(SHAPES), 1.25))
    for tables in ((path, network), (network, path)):
        found = json.loads(run(*tables, "--node", NODE, "--json").stdout)["families"]
        assert list(dict.fromkeys(row["family"] for row in found)) == ["gemm", "all_reduce"]


def test_a_call_s_numbers_are_named(tmp_path: Path) -> None:
    """Decoding and collectives, too, are told with the column of every number."""
    tables = {
        "attention.csv": "batch_size,isl,step,num_heads,num_key_value_heads,head_dim,time_s\n4,1,127,32,8,128,1e-5",
        "network.csv": "system,collective,n_gpus,n_nodes,bytes,kind,time_s\none,alltoall,8,2,65536,measured,1e-4",
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    worst = json.loads(run(*(tmp_path / name for name in tables), "--node", NODE, "--json").stdout)["worst"]
    assert {row["call"] for row in worst} == {
        "decode batch_size=4 isl=1 step=127 num_heads=32 num_key_value_heads=8 head_dim=128",
        "all_to_all n_gpus=8 n_nodes=2 bytes=65536",
    }


def test_the_worst_calls_come_first(tmp_path: Path) -> None:
    """The call that is farthest off leads the list, with its shape, whichever side it is off to."""
    path = tmp_path / "products.parquet"
    factors = np.ones(len(SHAPES))
    factors[5], factors[9] = 3.0, 1.5  # -67 % and -33 %
    table_of(path, factors)
    worst = json.loads(run(path, "--node", NODE, "--json").stdout)["worst"]
    assert [row["call"] for row in worst[:2]] == ["gemm m={} n={} k={}".format(*SHAPES[row]) for row in (5, 9)]
    assert [row["error"] for row in worst[:2]] == pytest.approx([-2 / 3, -1 / 3])


def test_only_what_a_fit_leaves_out_is_judged_when_asked(tmp_path: Path) -> None:
    """With --held-out the calls are those that `simulate calibrate --from` counts as held out."""
    path, out = tmp_path / "products.parquet", tmp_path / "fitted.yaml"
    table_of(path, np.full(len(SHAPES), 1.1))
    fitted = CliRunner().invoke(group, ["calibrate", "--from", str(path), "--node", NODE, "--out", str(out), "--json"])
    row = json.loads(fitted.stdout)["residuals"]["gemm"]
    found = families(run(path, "--node", NODE, "--profile", out, "--held-out", "--json"))[0.0]
    assert found["calls"] == row["held_out_points"] < len(SHAPES)
    assert found["mean_absolute_error"] == pytest.approx(row["held_out_mean"], abs=2e-4)


def test_it_fails_above_a_mean_error(tmp_path: Path) -> None:
    """--fail-above leaves with 1 past the mean error of a family, and with 0 below."""
    path = tmp_path / "products.parquet"
    table_of(path, np.full(len(SHAPES), 1.25))
    assert run(path, "--node", NODE, "--fail-above", "19%").exit_code == 1
    assert run(path, "--node", NODE, "--fail-above", "21%").exit_code == 0


def test_collectives_of_one_system_are_judged(tmp_path: Path) -> None:
    """Rows of the named system count, each kind a family of its own, with the spread of the network."""
    path = two_systems(tmp_path)
    assert run(path, "--node", NODE).exit_code == 2
    summary = json.loads(run(path, "--node", NODE, "--system", "one", "--json").stdout)
    of_all = {row["family"]: row for row in summary["families"] if row["longer_than_s"] == 0.0}
    assert {family: row["calls"] for family, row in of_all.items()} == {"all_reduce": 20, "all_to_all": 20}
    assert all(0.0 <= row["coverage"] <= 1.0 for row in of_all.values())


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["no.parquet", "--node", NODE], "there is no such file"),
        (["table.parquet"], "node is not named"),
        (["table.parquet", "--node", "dgx-a100"], "did you mean"),
        (["table.parquet", "--node", NODE, "--profile", "no.yaml"], "no.yaml"),
        (["table.parquet", "--node", NODE, "--fail-above", "7"], "not a percentage"),
        (["other.parquet", "--node", NODE], "the columns are a"),
        (["one.parquet", "--node", NODE, "--held-out"], "none of the rows"),
    ],
)
def test_bad_input_is_refused(args: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong tables and options leave with 2 and one message."""
    monkeypatch.chdir(tmp_path)
    table_of(tmp_path / "table.parquet", np.ones(len(SHAPES)))
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    fitted = next(shape for shape in SHAPES if not is_held_out("gemm m={} n={} k={}".format(*shape), HELD_OUT_TABLES))
    pd.DataFrame([(*fitted, 1e-5)], columns=["m", "n", "k", "time_s"]).to_parquet(tmp_path / "one.parquet")
    result = run(*args)
    assert result.exit_code == 2
    assert problem in result.output


def test_a_profile_of_another_node_is_refused(tmp_path: Path) -> None:
    """A profile's fractions are of its own node's rates; the message names that node."""
    path, out = tmp_path / "products.parquet", tmp_path / "fitted.yaml"
    table_of(path, np.ones(len(SHAPES)))
    made = CliRunner().invoke(group, ["calibrate", "--from", str(path), "--node", NODE, "--out", str(out)])
    assert made.exit_code == 0
    result = run(path, "--node", "hgx-h100", "--profile", out)
    assert result.exit_code == 2
    assert f"write --node {NODE}" in result.output
