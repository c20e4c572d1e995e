"""simulate execute --calibrate: the machine is measured while the plan runs, and the usual run counts."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.execution.result import CheckReport, Execution, MemoryAccount, RankResult
from scenarios.cli import main
from scenarios.reading.clusters.profile_file import read_profile
from scenarios.workloads.steps.executing.calibrating import usual_execution
from sim.plan.words.program import Mesh, Plan

PLAN = Plan("none", Mesh((("dp", 1),)), ())


def executed(step_s: float, cpu_share: float = 1.0, *, passed: bool = True) -> Execution:
    """Return an execution on one rank."""
    memory = MemoryAccount(0, {}, [], [], [], 0)
    check = CheckReport({"x": 0.0 if passed else 1.0}, 1e-9)
    result = RankResult(
        rank=0, role="all", starts_s=(), ends_s=(), step_s=step_s, cpu_s=cpu_share * step_s, memory=memory, check=check,
        allocator_peak_bytes=None, values={}, step_times_s=(step_s,),
    )  # fmt: skip
    return Execution(PLAN, (result,))


def usual(executions: Sequence[Execution]) -> tuple[float, tuple[float, ...]]:
    """Return time and step times of the usual one."""
    found = usual_execution(executions)
    return found.iteration_time_s, found.step_times_s


def test_the_usual_execution_is_the_median_of_the_quiet_ones() -> None:
    """Executions that got less of the processor do not count; of the others the one in the middle does."""
    quiet = [executed(time_s) for time_s in (5.0, 3.0, 4.0)]
    assert usual(quiet) == (4.0, (5.0, 3.0, 4.0))
    assert usual([*quiet, executed(1.0, 0.5), executed(9.0, 0.2)]) == (4.0, (5.0, 3.0, 4.0))


def test_a_failed_check_is_not_left_out() -> None:
    """However unusual its time, an execution with other numbers is the one that is shown."""
    found = usual_execution([executed(4.0), executed(9.0, 0.1, passed=False), executed(4.0)])
    assert found.check is not None
    assert not found.check.passed


def test_a_run_is_compared_with_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result is that of any execution; beside it lies the profile that it was predicted with."""
    out = tmp_path / "out"
    small = ("model.num_layers=2", "model.hidden_size=64", "model.sequence_length=16")
    settings = [word for setting in small for word in ("--set", setting)]
    arguments = ["tiny-gpt-two-stages", *settings, "--calibrate", "2 s", "--steps", "2", "--check", "--out", str(out)]
    with pytest.raises(SystemExit) as caught:
        main(["execute", *arguments])
    assert caught.value.code in (0, None), capsys.readouterr()
    told = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert told["passed"]
    assert told["check_passed"]
    assert told["same_work"]
    assert told["profile_basis"] == "measured"
    assert len(told["iteration_times_s"]) >= 1
    assert told["simulated_iteration_time_median_s"] > 0
    assert read_profile(out / "this-machine.yaml").measured is not None
    assert (out / "this-machine.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["textbook-1f1b", "--calibrate", "5 s"], "no profile predicts them"),
        (["tiny-gpt-two-stages", "--calibrate", "5"], "--calibrate"),
        (["tiny-gpt-two-stages", "--calibrate", "1 s"], "measuring takes 2 s to 1 h"),
        (["tiny-gpt-two-stages", "--calibrate", "5 s", "--set", "cluster.node=dgx-a100-80g"], "devices of kind gpu"),
    ],
)
def test_what_is_not_this_machine_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message that names the option, and exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(["execute", *arguments])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert words in told
    assert "--calibrate" in told
