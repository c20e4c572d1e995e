"""What profiles say of their errors comes from measurements: made anew, it is what stands there."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

from costmodels.calibration.document import parse_calibrated, rates_entry
from costmodels.calibration.kernels import predict_kernels
from costmodels.calibration.samples import KernelSample, is_held_out
from costmodels.calibration.spread import spread_of, widened
from costmodels.hardware import load_node
from costmodels.profile import load_profile, packaged_entry
from costmodels.spread import NETWORK
from scenarios.calibration.tables import HELD_OUT_TABLES, read_samples
from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.fitting.spread_fit import StepTables, network_calls, step_spread
from scenarios.validation import published
from tests.scenarios.calibration.measured_tables import SOFTWARE, table_of_steps
from tests.traces.kineto_traces import write as write_trace
from traces.published import FOLDER, load_table

PROFILES = Path(__file__).parents[3] / "costmodels" / "profiles"
A100 = PROFILES / "a100.yaml"
COLLECTIVES = (
    "nccl_a100_below_1_mib",
    "nccl_a100_from_1_mib",
    "torch_all_reduce_a100",
    "torch_messages_two_nodes_a100",
)


def run(*args: object) -> Result:
    """Run ``simulate spread``."""
    return CliRunner().invoke(group, ["spread", *map(str, args)])


def products(folder: Path, error: Callable[[np.ndarray], np.ndarray]) -> Path:
    """Write matrix products that take exp(error) as long as an A100's profile predicts; error: of log2 of m, n, k."""
    shapes = (2 ** np.random.default_rng(0).uniform(6.0, 13.0, (900, 3))).astype(int)
    path = folder / "products.parquet"
    pd.DataFrame(shapes, columns=["m", "n", "k"]).assign(time_s=1.0).to_parquet(path)
    samples = [sample for sample in read_samples(path, None) if isinstance(sample, KernelSample)]
    predicted_s = np.array(predict_kernels(samples, load_node("dgx-a100-80g"), load_profile("a100")))
    times_s = predicted_s * np.exp(error(np.log2(shapes)))
    pd.DataFrame(shapes, columns=["m", "n", "k"]).assign(time_s=times_s).to_parquet(path)
    return path


def steps(folder: Path, fitted_s: float, held_out_s: float, node: str = "dgx-a100-80g") -> Path:
    """Write a table of four measured steps, one of them held out."""
    return steps_that_took(folder, [("fitted", fitted_s)] * 3 + [("held out", held_out_s)], node)


def steps_that_took(folder: Path, taken: Sequence[tuple[str, float]], node: str = "dgx-a100-80g") -> Path:
    """Write a table of steps of ever larger micro-batches: in which half each is, and its seconds."""
    rows = [f"{number},1,{1 << number},{half},{time_s}\n" for number, (half, time_s) in enumerate(taken)]
    return table_of_steps(folder, "".join(rows), (SOFTWARE, ""), ("dgx-a100-80g", node))


def kernels(path: Path, recorded: list[tuple[str, int, float]]) -> Path:
    """Write a recorded profile of operators, each with its elements and its kernel's microseconds."""
    events = []
    for number, (name, size, microseconds) in enumerate(recorded):
        at, said = 1e6 * number, {"correlation": number + 1, "stream": 7}
        shapes = {"Input Dims": [[size]], "Input type": ["float"]}
        call = {"ph": "X", "cat": "cpu_op", "name": name, "ts": at, "dur": 50, "tid": 1, "args": shapes}
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": at, "dur": 1, "tid": 1, "args": said}
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": at + 60, "dur": microseconds, "tid": 7, "args": said}
        events += [call, launch, kernel]
    return write_trace(path, {"traceEvents": events})


def test_the_network_s_errors_are_those_of_the_published_collectives() -> None:
    """Estimated again from the tables that come with meshtwin, they are the profile's, to its digits."""
    calibrated = parse_calibrated("a100", packaged_entry("a100"))
    calls = network_calls(calibrated, [load_table(FOLDER / f"{name}.yaml") for name in COLLECTIVES])
    found, stated = spread_of(calls), load_profile("a100").spread[NETWORK]
    assert [deviation for _, deviation in found.deviation] == pytest.approx([d for _, d in stated.deviation], rel=5e-3)
    assert [seconds for seconds, _ in found.deviation] == pytest.approx([s for s, _ in stated.deviation], rel=5e-3)
    assert (found.common, found.near) == pytest.approx((stated.common, stated.near), abs=5e-3)


def test_as_many_constants_as_steps_leave_nothing_to_see(tmp_path: Path) -> None:
    """Three steps, beside one that nothing was fitted to, say nothing of what three constants leave."""
    with pytest.raises(ScenarioError, match="3 steps cannot show what 3 constants leave"):
        step_spread(StepTables(paths=[steps(tmp_path, 1.0, 1.0)], num_constants=3))


# --- the command ------------------------------------------------------------------------------------------


def test_errors_that_a_table_was_made_with_are_written(tmp_path: Path) -> None:
    """Products 8 % off, each for itself: that stands in the profile; every other line is as it was."""
    random, out = np.random.default_rng(0), tmp_path / "mine.yaml"
    table = products(tmp_path, lambda shapes: random.normal(0.0, 0.08, len(shapes)))
    result = run(A100, table, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    written = yaml.safe_load(out.read_text(encoding="utf-8"))
    assert written["spread"]["gemm"] == json.loads(result.output)["gemm"]
    deviations = written["spread"]["gemm"]["deviation"].values()
    assert list(deviations) == pytest.approx([0.08] * len(deviations), rel=0.25)
    assert written["spread"]["gemm"]["common"] + written["spread"]["gemm"].get("near", 0.0) < 0.1
    stated = packaged_entry("a100")
    assert written == stated | {"spread": stated["spread"] | {"gemm": written["spread"]["gemm"]}}
    before, after = (path.read_text(encoding="utf-8").partition("\nspread:")[0] for path in (A100, out))
    assert before == after


def test_an_error_of_all_calls_is_common(tmp_path: Path) -> None:
    """All products 10 % too slow: that is the deviation of all, and next to all of it is shared."""
    out = tmp_path / "mine.yaml"
    assert run(A100, products(tmp_path, lambda shapes: np.full(len(shapes), 0.1)), "--out", out).exit_code == 0
    gemm = yaml.safe_load(out.read_text(encoding="utf-8"))["spread"]["gemm"]
    assert list(gemm["deviation"].values()) == pytest.approx([0.1] * len(gemm["deviation"]), rel=0.03)
    assert gemm["common"] == pytest.approx(1.0, abs=0.01)


def test_steps_count_beside_what_the_same_tables_say_of_kernels(tmp_path: Path) -> None:
    """Steps twice as slow as predicted: log 2 is left, less what products 30 % off explain."""
    table = steps(tmp_path, 1.0, 1e-9)
    alone_s = [row.predicted for row in published.run((table,)).tables[0].rows]
    steps_that_took(tmp_path, [("fitted", 2 * time_s) for time_s in alone_s])
    exact, off = tmp_path / "exact.yaml", tmp_path / "off.yaml"
    assert run(A100, table, products(tmp_path, lambda shapes: 0.0 * shapes[:, 0]), "--out", exact).exit_code == 0
    assert run(A100, table, products(tmp_path, lambda shapes: 0.3 + 0.0 * shapes[:, 0]), "--out", off).exit_code == 0
    of_exact, of_off = (yaml.safe_load(out.read_text(encoding="utf-8"))["spread"]["step"] for out in (exact, off))
    assert 0.8 * math.log(2) < of_off["deviation"] < of_exact["deviation"] < widened(math.log(2), 4)
    assert of_exact["source"].startswith("What steps are off")


@pytest.mark.parametrize(("constants", "words"), [(1, "1 constant fitted"), (2, "2 constants fitted")])
def test_constants_are_counted_in_words(constants: int, words: str, tmp_path: Path) -> None:
    """The source of a deviation of steps says how many constants were fitted, one of them without an s."""
    out = tmp_path / "mine.yaml"
    assert run(A100, steps(tmp_path, 1e-3, 1.0), "--constants", constants, "--out", out).exit_code == 0
    assert words in yaml.safe_load(out.read_text(encoding="utf-8"))["spread"]["step"]["source"]


def test_steps_that_constants_were_not_fitted_to_have_no_say(tmp_path: Path) -> None:
    """Rows of another group than the fitted one are there to judge intervals: whatever they are, nothing changes."""
    found, among_all = (
        [
            step_spread(StepTables(paths=[steps(tmp_path, 1e-3, other_s)], num_constants=1, all_groups=all_groups))
            for other_s in (1e-6, 1e3)
        ]
        for all_groups in (False, True)
    )
    assert found[0] == found[1]
    assert among_all[0] != among_all[1]


def test_a_profile_with_rates_of_its_own_is_held_against_its_own_node_alone(tmp_path: Path) -> None:
    """Its rates take the place of the catalogue's: steps of another node of the generation say nothing of it."""
    slow = dict(rates_entry(load_node("dgx-a100-80g"))) | {"memory_bandwidth": "1 GB/s"}
    mine = parse_calibrated("mine", {**packaged_entry("a100"), "measured": slow})
    table = StepTables([steps(tmp_path, 1e-3, 1.0)])
    packaged_off, off = (step_spread(table, profile) for profile in (None, mine))
    assert off > packaged_off + 1.0
    with pytest.raises(ScenarioError, match="the row is of dgx-a100-40g, and mine is a profile of dgx-a100-80g"):
        step_spread(StepTables([steps(tmp_path, 1e-3, 1.0, node="dgx-a100-40g")]), mine)


def test_a_trace_says_how_memory_bound_kernels_differ(tmp_path: Path) -> None:
    """Two operators, one of them half as fast: each log(2) / 2 off one fraction of the bandwidth; sqrt(2) in two."""
    out, sizes = tmp_path / "mine.yaml", [1 << (20 + number // 4) for number in range(40)]
    operators = [("aten::sigmoid", 1), ("aten::relu", 2)] * 20
    recorded = [(name, size, 8e-6 * size * slow) for (name, slow), size in zip(operators, sizes, strict=True)]
    trace = kernels(tmp_path / "trace.json", recorded)
    assert run(A100, "--trace", trace, "--out", out).exit_code == 0
    found = yaml.safe_load(out.read_text(encoding="utf-8"))["spread"]["elementwise"]
    deviation = found["deviation"]
    largest = deviation if isinstance(deviation, float) else list(deviation.values())[-1]
    assert largest == pytest.approx(math.sqrt(2) * 0.5 * math.log(2), rel=0.15)
    assert found["source"].startswith("log(measured/predicted) of memory-bound kernels in trace.json")


@pytest.mark.parametrize(
    ("operators", "microseconds", "problem"),
    [
        (["aten::relu"], 8.0, "one operator does not show how operators differ"),
        (["aten::relu", "aten::sigmoid"], 1.0, "say nothing of the bandwidth"),
    ],
)
def test_a_trace_that_cannot_tell_is_refused(
    operators: list[str], microseconds: float, problem: str, tmp_path: Path
) -> None:
    """One operator, and kernels that end before a launch does, say nothing of how kernels differ."""
    trace = kernels(tmp_path / "trace.json", [(name, 1 << 20, microseconds) for name in operators])
    result = run(A100, "--trace", trace, "--out", tmp_path / "mine.yaml")
    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([], "nothing measured is named"),
        (["no.parquet"], "there is no such file"),
        (["no.yaml"], "no.yaml"),
        ([FOLDER / "sequence_parallel_activation_memory.yaml"], "no errors are drawn of activation_bytes"),
        ([FOLDER / "torch_all_reduce_two_nodes_a100.yaml"], "a network of its own"),
        ([FOLDER / "torch_all_reduce_b200.yaml"], "the row is of dgx-b200, and a100 is a profile of dgx-a100-80g"),
        ([FOLDER / "mlperf_gpt3_h100.yaml"], "the row is of hgx-h100"),
        (["--trace", "no.json"], "no.json"),
        (["--trace", "no.json", "--recorded-on", "dgx-2"], "its devices are v100"),
        (["--trace", "no.json", "--recorded-on", "dgx-3"], "dgx-3"),
    ],
)
def test_what_says_nothing_of_the_profile_is_refused(
    args: list[object], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing files, tables of other results and other machines, and too few steps leave with 2 and no file."""
    monkeypatch.chdir(tmp_path)
    result = run(A100, *args, "--out", "mine.yaml")
    assert result.exit_code == 2, result.output
    assert problem in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_rows_that_a_fit_takes_say_nothing(tmp_path: Path) -> None:
    """A table all of whose rows are fitted to has none to tell errors by: it is refused, and nothing is written."""
    table, out = tmp_path / "one.parquet", tmp_path / "mine.yaml"
    fitted = next(m for m in range(64, 4096) if not is_held_out(f"gemm {m} 512 512", HELD_OUT_TABLES))
    pd.DataFrame([(fitted, 512, 512, 1e-5)], columns=["m", "n", "k", "time_s"]).to_parquet(table)
    result = run(A100, table, "--out", out)
    assert result.exit_code == 2
    assert "none of the tables' rows" in result.output
    assert not out.exists()


def test_a_section_that_is_no_block_of_lines_is_refused(tmp_path: Path) -> None:
    """Lines are replaced, so that comments stay: a section in braces is not one of lines."""
    entry, path = packaged_entry("a100"), tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(dict(entry), default_flow_style=True), encoding="utf-8")
    result = run(path, products(tmp_path, lambda shapes: 0.1 + 0.0 * shapes[:, 0]), "--out", tmp_path / "out.yaml")
    assert result.exit_code == 2
    assert "indented lines below it" in result.output
