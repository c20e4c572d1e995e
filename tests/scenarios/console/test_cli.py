"""The command line: lazy, quick, and with the promised surface."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from scenarios.cli import main
from scenarios.command_line import COMMANDS, HELP
from scenarios.errors import Origin, ScenarioError
from scenarios.report.blocks import Block
from scenarios.report.pages.run_page import FoundStep, closing_block, training_blocks
from scenarios.summaries.as_json import as_json
from scenarios.summaries.measured.validation import ErrorThresholds, PredictedRow, ValidatedTable, Validation
from scenarios.summaries.steps.advice import AdviceSummary, TriedChange
from scenarios.summaries.steps.step import EngineWork, Folded, StepSummary
from scenarios.sweep.ahead import IMPORTED, import_ahead_of
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import KINDS
from scenarios.workloads.steps.executing.execution import ExecutedStep
from scenarios.workloads.workload import Outcome
from sim.cluster.topology.catalogue import list_topologies
from tests.scenarios.typed_results import comparison_of, execution_of, role_of, step_of
from traces.kineto.rank import StepWindow
from traces.timeline import TimelineBuilder

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "pandas", "matplotlib", "pyarrow", "plotly", "scipy", "pydantic", "numpy", "simpy", "yaml", "rich"}

SUMMARY = step_of(
    scenario="a", world_size=1536, iteration_time_s=20.0, tokens_per_s=235929.6, model_flop_per_s_per_device=1.48e14,
    hardware_flop_per_s_per_device=1.9e14, mfu=0.474, hfu=0.61, bubble_fraction=0.03,
    exposed_communication_fraction=0.05, fits_memory=True, memory_capacity_bytes=80 * 2**30,
    roles=tuple(
        role_of(
            role=f"pp={stage}", num_ranks=192, peak_memory_bytes=(60 - stage) * 2**30,
            peak_live_microbatches=8.0 - stage, busy_s={"compute": 14.0}, exposed_s={"tp": 2.0, "bubble": 1.0},
            computing_s={"needed": 11.0, "recomputed": 2.0, "empty_slots": 0.0, "duplicated": 1.0},
        )
        for stage in range(8)
    ),
    fold=Folded(ranks=1536, simulated=8), engine=EngineWork(events=1000, wall_time_s=0.1),
)  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Run the command line and return exit code and standard output."""
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    return int(caught.value.code or 0), capsys.readouterr().out


class Fixed(Outcome):
    """A result that nobody simulated."""

    def __init__(self, summary: StepSummary = SUMMARY) -> None:
        self.summary = summary

    def row(self) -> object:
        """Return that there is nothing to compare."""
        return None

    def blocks(self, *, drawn: bool = True) -> Sequence[Block]:
        """Return the summary in words."""
        return training_blocks(FoundStep(self.summary))

    def closing(self) -> Sequence[Block]:
        """Return what would help."""
        return (closing_block(self.summary),)


@pytest.fixture
def simulated(monkeypatch) -> list[tuple[object, dict[str, object]]]:
    """Put a fixed result in the simulation's place, and return what it was asked for."""
    calls: list[tuple[object, dict[str, object]]] = []

    def simulate(scenario: object, **options: object) -> Fixed:
        calls.append((scenario, options))
        return Fixed()

    def advised(_kind: object, found: Fixed, level: str) -> Fixed:
        calls.append(("advice", {"level": level}))
        return Fixed(replace(found.summary, advice=ADVICE))

    monkeypatch.setattr("scenarios.workloads.training.workload.simulate", simulate)
    monkeypatch.setattr("scenarios.workloads.training.workload.TrainingStep.advised", advised)
    return calls


ADVICE = AdviceSummary(
    level="quick",
    best=TriedChange(
        set=("training.recompute=selective",), fits_memory=True, peak_memory_bytes=2**30, iteration_time_s=16.0,
        gain=0.25,
    ),
)  # fmt: skip


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    """``simulate --help`` loads none of the heavy packages and takes less than 0.4 s of processor time."""
    code = (
        "import sys\n"
        "from scenarios.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    best_s = 1e9
    for _ in range(3):
        before = os.times()
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        after = os.times()
        user_s, system_s = after.children_user - before.children_user, after.children_system - before.children_system
        best_s = min(best_s, user_s + system_s)
    loaded = set(shown.stdout.split("LOADED ")[1].split())
    assert loaded & HEAVY == set()
    assert "click" in loaded
    assert best_s < 0.4


def test_simulating_imports_no_optimiser_no_tensors_and_no_other_kind() -> None:
    """A simulated step, and a simulated pass, need no scipy, torch, Parquet, templates or other kinds of work."""
    code = (
        "import sys\n"
        "from scenarios.workloads.loading import load_scenario\n"
        "from scenarios.workloads.steps.running import simulate\n"
        "simulate(load_scenario('scenarios/library/tiny-gpt-2x2.yaml'))\n"
        "passes = load_scenario('scenarios/library/inference/tiny-experts-2x2.yaml')\n"
        "passes.workload.simulate(passes)\n"
        "print(*sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    modules = set(shown.stdout.split())
    loaded = {name.split(".")[0] for name in modules}
    assert "simpy" in loaded
    assert {kind.name for kind in KINDS if kind.module in modules} == {"training", "inference"}
    assert not loaded & {"torch", "pandas", "matplotlib", "scipy", "pyarrow", "jinja2", "plotly"}
    assert not modules & {
        "backends.execution.protocol",
        "backends.execution.embedding",
        "sim.embedding",
        "sim.embedding.run",
    }


def test_help_names_every_command_and_every_option_of_the_main_one(capsys) -> None:
    """The help text that is written by hand keeps up with the options."""
    code, shown = run(capsys, "--help")
    assert code == 0
    assert all(name in shown for name in COMMANDS)
    command = importlib.import_module("scenarios.commands.simulate").command
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert options == {"--set", "--out", "--json", "--detail", "--advice", "--fold"}
    assert all(option.replace("--fold", "--no-fold") in HELP for option in options)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name: str) -> None:
    """Each command of the table is importable and explains itself."""
    code, shown = run(capsys, name, "--help")
    assert code == 0
    assert f"simulate {name}" in shown


def test_scenario_alone_is_simulated(capsys, write, simulated) -> None:
    """The main command's name may be left out, wherever the options stand."""
    path = str(write())
    for args in ([path, "--json"], ["--json", path], ["simulate", path, "--json"]):
        code, shown = run(capsys, *args, "--set", "seed=3", "--no-fold", "--detail", "task")
        assert code == 0
        assert json.loads(shown) == json.loads(json.dumps(as_json(SUMMARY)))
    assert len(simulated) == 3
    scenario, options = simulated[0]
    expected = load_scenario(path, ["seed=3"])
    assert (scenario.seed, scenario.job, scenario.cluster) == (3, expected.job, expected.cluster)
    assert callable(options.pop("announce"))
    assert options == {"detail": "task", "fold": False}


def test_results_are_written_where_asked(capsys, write, tmp_path, simulated, monkeypatch) -> None:
    """``--out`` hands the result to the writer, and says where it went."""
    written: list[Path] = []
    monkeypatch.setattr("scenarios.workloads.workload.Outcome.write", lambda _result, folder: written.append(folder))
    code, shown = run(capsys, str(write()), "--out", str(tmp_path / "new" / "out"))
    assert code == 0
    assert written == [tmp_path / "new" / "out"]
    assert f"written to {tmp_path / 'new' / 'out'}" in shown
    assert simulated


def test_readable_summary_answers_first(capsys, write, simulated) -> None:
    """Answer, then where the time goes, then a change that makes a valid scenario."""
    path = write()
    code, shown = run(capsys, str(path))
    assert code == 0
    assert simulated
    order = ["step time", "throughput", "MFU 47.4 %", "60.00 GiB of 80.00 GiB on pp=0", "where the time goes",
             "computing again", "10.0 %", "computing the same on several ranks", "what would help most"]  # fmt: skip
    positions = [shown.index(words) for words in order]
    assert positions == sorted(positions)
    assert "--set training.recompute=selective" in shown
    load_scenario(path, ["training.recompute=selective"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["quick"]),
        (["--advice", "full"], ["full"]),
        (["--advice", "none"], []),
        (["--json"], []),
        (["--json", "--advice", "quick"], ["quick"]),
        (["--json", "--out", "{out}"], ["quick"]),
    ],
)
def test_advice_is_sought_as_asked_for(
    capsys, write, tmp_path, simulated, monkeypatch, options: list[str], expected: list[str]
) -> None:
    """Quick for people and files, none for a program that reads JSON alone; what was found is in the JSON."""
    monkeypatch.setattr("scenarios.workloads.workload.Outcome.write", lambda _result, _folder: None)
    code, shown = run(capsys, str(write()), *(word.format(out=tmp_path / "out") for word in options))
    assert code == 0
    assert [asked["level"] for what, asked in simulated if what == "advice"] == expected
    if "--json" in options:
        assert ("advice" in json.loads(shown)) == bool(expected)
    else:
        assert ("what would help most" in shown) == bool(expected)


def test_answer_is_out_before_advice_begins(write, simulated, monkeypatch, tmp_path) -> None:
    """A pipe has the answer when advice is interrupted."""
    path = tmp_path / "shown.txt"
    seen = []

    def interrupted(_kind: object, _found: Fixed, _level: str) -> Fixed:
        seen.append(path.read_text(encoding="utf-8"))
        raise KeyboardInterrupt

    monkeypatch.setattr("scenarios.workloads.training.workload.TrainingStep.advised", interrupted)
    with path.open("w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            main([str(write())])
    assert simulated
    assert "step time" in seen[0]
    assert "what would help most" not in path.read_text(encoding="utf-8")


def test_schema_is_printed(capsys, schema) -> None:
    """``simulate schema`` is the JSON Schema and nothing else."""
    code, shown = run(capsys, "schema")
    assert code == 0
    assert json.loads(shown) == schema


def test_list_shows_what_there_is(capsys) -> None:
    """Nodes, presets, schedules and kernels, as tables and as JSON."""
    code, shown = run(capsys, "list")
    assert code == 0
    for name in ("dgx-a100-80g", "local-cpu", "llama-3-405b", "interleaved_1f1b", "flash_attention_backward"):
        assert name in shown
    code, shown = run(capsys, "list", "presets", "--json")
    records = json.loads(shown)
    assert list(records) == ["presets"]
    assert {"name", "hidden_size", "source"} <= set(records["presets"][0])


def test_list_names_every_topology_of_the_catalogue(capsys) -> None:
    """Each has the layout of its nodes and the kind of its fabric, and a scenario takes its name."""
    _, shown = run(capsys, "list", "topologies", "--json")
    records = json.loads(shown)["topologies"]
    assert [record["name"] for record in records] == list(list_topologies())
    assert {"name": "superpod-h100", "nodes": "hgx-h100", "fabric": "rail-optimised"} in records
    assert "superpod-h100" in run(capsys, "list", "topologies")[1]


@pytest.mark.parametrize(
    ("node", "peak"),
    [
        ("dgx-2", "125 TFLOP/s fp16"),
        ("dgx-a100-80g", "312 TFLOP/s bf16"),
        ("hgx-h100", "989.4 TFLOP/s bf16"),
        ("dgx-b200", "2.25 PFLOP/s bf16"),
        ("local-cpu", "80 GFLOP/s fp32"),
    ],
)
def test_list_names_the_precision_of_a_peak(capsys, node, peak) -> None:
    """The peak of a node's devices is of the fastest precision of 16 or 32 bits, which is named."""
    _, shown = run(capsys, "list", "nodes", "--json")
    (record,) = (record for record in json.loads(shown)["nodes"] if record["name"] == node)
    assert record["dense peak"] == peak


def test_new_writes_a_starter_file_once(capsys, tmp_path) -> None:
    """The file is valid, and never overwritten."""
    path = tmp_path / "mine.yaml"
    code, shown = run(capsys, "new", str(path))
    assert code == 0
    assert f"simulate {path}" in shown
    load_scenario(path)
    path.write_text("precious")
    code, _ = run(capsys, "new", str(path))
    assert code == 2
    assert path.read_text() == "precious"
    assert run(capsys, "new", str(tmp_path / "no" / "folder.yaml"))[0] == 2
    assert run(capsys, "new", str(tmp_path / "quickstart"))[0] == 2
    assert not (tmp_path / "quickstart").exists()


@pytest.mark.parametrize(("passed", "expected"), [(True, 0), (False, 1)])
def test_thresholds_decide_the_exit_code(capsys, write, monkeypatch, passed: bool, expected: int) -> None:
    """A failed comparison, validation or check leaves with exit code 1."""
    row = PredictedRow(name="a", measured=1.0, predicted=1.1, error=0.1, interval=None, inside=None)
    table = ValidatedTable(
        table="t", citation="A paper", prediction="iteration_time_s", unit="s", rows=(row,), groups=(),
        mean_absolute_error=0.1, percentile_95=0.1, worst=0.1, coverage=None,
        thresholds=ErrorThresholds(mean=0.05, worst=0.12, percentile_95=None), passed=passed,
    )  # fmt: skip
    validation = Validation(tables=(table,))
    seen: list[dict[str, object]] = []
    timeline = TimelineBuilder().build()

    def compare(*_files: Path, **options: object) -> SimpleNamespace:
        seen.append(options)
        return SimpleNamespace(summary=comparison_of(passed=passed), passed=passed)

    executed = ExecutedStep(name="a", summary=execution_of(passed=passed), simulated=timeline, timeline=timeline)
    monkeypatch.setattr("scenarios.comparing.comparison.run", compare)
    monkeypatch.setattr("scenarios.validation.published.run", lambda *_a, **_k: validation)
    monkeypatch.setattr("scenarios.workloads.steps.executing.execution.run", lambda *_a, **_k: executed)
    assert run(capsys, "compare", "a", "b", "--fail-above", "12.5%")[0] == expected
    assert seen == [{"fail_above": 0.125, "window": StepWindow()}]
    assert run(capsys, "validate")[0] == expected
    assert (
        repr(validation)
        == ("Validation: 1 of 1 tables passed", "Validation: 0 of 1 tables passed\n  FAILED: t")[expected]
    )
    assert validation.as_json()["tables"][0]["rows"] == [as_json(row)]
    assert run(capsys, "validate", "--json") == (expected, json.dumps(validation.as_json(), indent=2) + "\n")
    assert run(capsys, "execute", str(write()), "--check")[0] == expected


def test_input_errors_of_every_command_are_refusals(capsys, write, monkeypatch) -> None:
    """Errors that the work itself finds in its input come out as messages too."""

    def refuse(*_args: object, **_named: object) -> None:
        raise ScenarioError(Origin("a.csv", 3), "key", "a rule", "a remedy")

    for work in (
        "workloads.training.workload.simulate",
        "workloads.steps.executing.execution.run",
        "comparing.comparison.run",
        "validation.published.run",
    ):
        monkeypatch.setattr(f"scenarios.{work}", refuse)
    path = str(write())
    for args in ([path], ["execute", path], ["compare", "a", "b"], ["validate"]):
        assert run(capsys, *args) == (2, "")


@pytest.mark.parametrize(
    ("line", "ahead"),
    [
        ("plan a.yaml", ["scenarios.planning.searched"]),
        ("plan a.yaml --jobs 3", ["scenarios.planning.searched"]),
        ("sweep a.yaml --set seed=1,2 --jobs=2", ["scenarios.sweep.run"]),
        ("sweep a.yaml --jobs=1", []),
        ("plan a.yaml --jobs 1", []),
        ("plan a.yaml --scheduler tcp://b:1", []),
        ("plan --help", []),
    ],
)
def test_imports_of_workers_begin_where_there_are_workers(
    line: str, ahead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search and a sweep on several local processes let these import before the command itself; others do not."""
    begun = list[str]()
    monkeypatch.setattr("scenarios.sweep.ahead.import_ahead", begun.extend)
    monkeypatch.setattr("scenarios.sweep.ahead.available_cores", lambda: 2)
    assert list(import_ahead_of(line.split())) == begun == ahead


def test_modules_that_workers_import_exist() -> None:
    """A server leaves out what it cannot import, without a word."""
    assert all(find_spec(name) for names in IMPORTED.values() for name in names)
