"""simulate calibrate, and cluster.profile: end to end, from tables, and refusals."""

import json
import shlex
from pathlib import Path

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec.structs import replace

from backends.execution.measuring.cases import kernel_sample, kernel_steps
from costmodels.calibration.kernels import Fitted, predict_kernels
from costmodels.calibration.measured import catalogue_rates
from costmodels.hardware import load_node
from costmodels.profile import load_profile, packaged_entry
from docs.run_blocks import Command, printed_by, steps_of
from scenarios.calibration.machine import coarse, refined
from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.profile_file import read_profile
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate
from tests.scenarios.calibration.measured_tables import two_systems

ROOT = Path(__file__).parents[3]
TINY = ROOT / "scenarios" / "library" / "tiny-gpt-2x2.yaml"

ATTENTION = "batch_size,isl,step,num_heads,num_key_value_heads,head_dim,time_s"
COLLECTIVES = "system,collective,n_gpus,n_nodes,bytes,kind,time_s"


def run(*args: object) -> Result:
    """Run the command line."""
    return CliRunner().invoke(group, ["calibrate", *map(str, args)])


@pytest.fixture
def products(tmp_path: Path) -> Path:
    """Return a table of products at exactly half of an A100's peak, and 10 us."""
    rows = [(m, n, k) for m in (256, 512, 1024, 2048, 4096) for n in (512, 2048, 8192) for k in (256, 1024, 4096, 8192)]
    table = pd.DataFrame(rows, columns=["m", "n", "k"])
    table["time_s"] = 10e-6 + 2.0 * table.m * table.n * table.k / 156e12
    path = tmp_path / "products.parquet"
    table.to_parquet(path)
    return path


def test_this_machine_is_calibrated_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe, with less time and fewer processes, writes a profile that loads and gives another answer."""
    recipes = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    recipe, using = (step for step in steps_of(recipes) if isinstance(step, Command) and "this-machine" in step.line)
    monkeypatch.chdir(tmp_path)
    _, command, *arguments = shlex.split(recipe.line)
    assert command == "calibrate"
    out = tmp_path / "this-machine.yaml"
    result = run(*arguments, "--budget", "4 s", "--processes", 2, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["processes"] == 2
    assert told["fitted_sections"]
    assert told["storage"]["write_bytes_per_s"] > 1e6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["this-machine.html", "this-machine.yaml"]
    profile = read_profile(out)
    assert profile.measured is not None
    assert 0.0 < profile.profile.jitter["gemm"] < 1.0
    before = simulate(load_scenario(TINY)).as_json()["iteration_time_s"]
    after = simulate(load_scenario(TINY, [f"cluster.profile={out}"])).as_json()["iteration_time_s"]
    assert after > 0
    assert after != before
    assert printed_by(using.line)[1].startswith("step time")


def test_tables_are_fitted_and_checked_on_the_other_half(tmp_path: Path, products: Path) -> None:
    """Half of a table's rows are fitted, half predicted; sections without rows stay and say so."""
    out = tmp_path / "a100.yaml"
    result = run("--from", products, "--node", "dgx-a100-80g", "--out", out)
    assert result.exit_code == 0, result.output
    entry = yaml.safe_load(out.read_text(encoding="utf-8"))
    row = entry["calibration"]["residuals"]["gemm"]
    assert row["points"] + row["held_out_points"] == 60
    assert 15 < row["held_out_points"] < 43
    assert row["held_out_mean"] < 0.15
    assert "measured" not in entry
    assert entry["network"] == packaged_entry("a100")["network"]
    kept = packaged_entry("a100")["spread"]
    assert entry["spread"]["gemm"] != kept["gemm"]
    assert {**entry["spread"], "gemm": kept["gemm"]} == kept
    assert out.read_text(encoding="utf-8").startswith("# Written by: simulate calibrate --from products.parquet")
    profile = read_profile(out).profile
    assert profile.gemm != load_profile("a100").gemm
    assert profile.network.intra_fraction == pytest.approx(load_profile("a100").network.intra_fraction)


def test_collectives_need_their_system_named(tmp_path: Path) -> None:
    """A table of several systems is refused without --system, and fitted with it."""
    path, out = two_systems(tmp_path), tmp_path / "net.yaml"
    refused = run("--from", path, "--node", "dgx-a100-80g", "--out", out)
    assert refused.exit_code == 2
    assert "--system" in refused.output
    assert not out.exists()
    assert run("--from", path, "--system", "one", "--node", "dgx-a100-80g", "--out", out).exit_code == 0
    residuals = yaml.safe_load(out.read_text(encoding="utf-8"))["calibration"]["residuals"]
    assert set(residuals) == {"all_reduce", "all_to_all"}


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--out", "profile.txt"], "a profile is a YAML file"),
        (["--out", "nowhere/profile.yaml"], "there is no directory"),
        (["--out", "p.yaml", "--budget", "60"], "has no unit"),
        (["--out", "p.yaml", "--budget", "1 ms"], "measuring takes 2 s"),
        (["--out", "p.yaml", "--processes", "0"], "--processes"),
        (["--out", "p.yaml", "--node", "local-cup"], "did you mean local-cpu"),
        (["--out", "p.yaml", "--node", "dgx-2"], "devices of kind gpu"),
        (["--out", "p.yaml", "--device", "cuda"], "not named"),
        (["--out", "p.yaml", "--from", "no.parquet", "--node", "dgx-2"], "there is no such file"),
        (["--out", "p.yaml", "--from", "no.txt", "--node", "dgx-2"], "no known format"),
        (["--out", "p.yaml", "--from", "x.csv"], "the tables' node is not named"),
        (["--out", "p.yaml", "--from", "x.csv", "--node", "dgx-2", "--budget", "9 s"], "nothing is measured"),
        (["--out", "p.yaml", "--source", "me"], "there is no table"),
        (["--out", "p.yaml", "--from", "x.csv", "--from", "./x.csv", "--node", "dgx-2"], "named twice"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(
    args: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong options leave with 2, a message and no file, before anything is measured."""
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert result.exit_code == 2
    assert problem in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n", "the columns are a, b"),
        ("m,n,k,time_s\n1,2,3,0\n", "write seconds without their unit, from 1e-12 to 1e+09"),
        ("m,n,k,time_s\n1,2,3,1e-320\n", "write seconds without their unit, from 1e-12 to 1e+09"),
        ("m,n,k,time_s\n1,x,3,1\n", "row 1 has 'x'"),
        ("m,n,k,time_s\n1,2,3,nan\n", "row 1 has 'nan'"),
        ("m,n,k,time_s\n1,2,3,1\n1.5,2,3,1\n", "row 2 has '1.5'"),
        ("m,n,k,time_s\n1e30,2,3,1\n", "write a whole number from 1 to"),
        (f"{ATTENTION}\n1,128,0,8,3,64,1e-5\n", "row 1 has '3'"),
        (f"{COLLECTIVES}\nx,gather,8,1,100,measured,1e-4\n", "row 1 has 'gather'"),
        (f"{COLLECTIVES}\nx,all_reduce,8,0,100,measured,1e-4\n", "n_nodes: row 1 has '0'"),
        (f"{COLLECTIVES}\nx,all_reduce,8,2,9,measured,1e-4\nx,all_reduce,12,5,9,measured,1e-4\n", "row 2 has '5'"),
        (f"{COLLECTIVES}\nx,all_reduce,1,1,100,measured,1e-4\n", "no row of the table can be used"),
        ("", "the file is empty"),
        ("m,n,k,time_s\n1,2,3,1\n", "too few"),
    ],
)
def test_bad_tables_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    """A table without the right columns, rows or numbers is refused with file and row."""
    path, out = tmp_path / "t.csv", tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8")
    result = run("--from", path, "--node", "dgx-2", "--out", out)
    assert result.exit_code == 2
    assert problem in result.output
    assert not out.exists()


def test_scenario_refuses_profiles_that_do_not_fit(tmp_path: Path, products: Path) -> None:
    """A missing file, a file that is no profile, and a profile of another node are refused by key or file."""
    with pytest.raises(ScenarioError, match="there is no such file"):
        load_scenario(TINY, ["cluster.profile=missing.yaml"])
    with pytest.raises(ScenarioError, match="this is a scenario, not a profile"):
        load_scenario(TINY, [f"cluster.profile={TINY}"])
    out = tmp_path / "a100.yaml"
    assert run("--from", products, "--node", "dgx-a100-80g", "--out", out).exit_code == 0
    with pytest.raises(ScenarioError, match="one of dgx-a100-80g, and the cluster has local-cpu"):
        load_scenario(TINY, [f"cluster.profile={out}"])


def test_a_fitted_profile_holds_for_its_devices_and_a_measured_one_for_its_node(products: Path, tmp_path: Path) -> None:
    """Where the catalogue's rates hold, another node of the same devices takes the profile, too; measured rates are
    those of one node.
    """
    out = tmp_path / "a100.yaml"
    assert run("--from", products, "--node", "dgx-a100-80g", "--out", out).exit_code == 0
    fitted = load_scenario(TINY, [f"cluster.profile={out}", "cluster.node=dgx-a100-40g"]).cluster
    assert fitted is not None
    assert fitted.calibrated is not None
    assert fitted.calibrated.profile.gemm == read_profile(out).profile.gemm != load_profile("a100").gemm
    measured = replace(read_profile(out), measured=catalogue_rates(load_node("dgx-a100-80g")))
    nodes = ("dgx-a100-80g", "dgx-a100-40g", "hgx-h100")
    assert [read_profile(out).holds_for(node) for node in nodes] == [True, True, False]
    assert [measured.holds_for(node) for node in nodes] == [True, False, False]


def test_refinement_goes_where_the_fit_is_worst() -> None:
    """Steps not measured yet come first, and among them those whose measured neighbour is predicted worst."""
    jobs = kernel_steps("cpu", 1, ("fp32",))
    start = Fitted(load_profile("cpu"), load_node("local-cpu"))
    ends = coarse(jobs)
    kinds = {(family, "fp32", 1, schedule) for family in ("gpt", "llama") for schedule in ("1f1b", "terapipe")}
    assert {job.kind for job in ends} == kinds
    assert len(ends) == 2 * len(kinds)
    samples = []
    for job in ends:
        for call in job.calls().values():
            right = kernel_sample(call, 1.0)
            (predicted_s,) = predict_kernels([right], start.node, start.profile)
            samples.append(kernel_sample(call, predicted_s * (1.0 if job.kind[0] == "gpt" else 3.0)))
    chosen = refined(jobs, samples, start)
    assert sorted(job.key for job in chosen) == sorted(job.key for job in jobs)
    assert [job.kind[0] for job in chosen[:12]] == ["llama"] * 6 + ["gpt"] * 6
    assert set(chosen[12:]) == set(ends)
