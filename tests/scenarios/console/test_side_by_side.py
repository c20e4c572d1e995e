"""What ``execute`` and ``compare`` print, and what ``execute`` refuses."""

from io import StringIO
from typing import Any, get_args

import pytest
from msgspec.structs import replace
from rich.console import Console

from scenarios.console.blocks import print_blocks
from scenarios.console.side_by_side import print_comparison
from scenarios.errors import ScenarioError
from scenarios.report.pages.side_by_side import card_notes_of, execution_blocks
from scenarios.summaries.comparing.comparison import AlignedOps, PathPart, StepPart
from scenarios.summaries.measured.execution import CheckedNumbers, ExecutedWork, ExecutionSummary
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.executing.execution import refuse_too_large
from scenarios.workloads.steps.running import plan_of
from tests.scenarios.typed_results import comparison_of, executed_role, execution_of, share_of
from traces.comparison.mismatch import What

EXECUTION = execution_of(
    scenario="Tiny", world_size=4, iteration_time_s=0.2, simulated_iteration_time_s=0.1,
    simulated_iteration_time_interval_s=(0.09, 0.15),
    roles=(
        executed_role(role="pp=0", peak_memory_bytes=2**30, simulated_peak_memory_bytes=2**31),
        executed_role(role="pp=1", peak_memory_bytes=2**29, simulated_peak_memory_bytes=2**29),
    ),
    work=ExecutedWork(ops=1674, same_work=True, mismatches={}),
    check=CheckedNumbers(
        check_passed=True, checked_tensors=214, worst_tensor="rank 0: layer0.qkv.bias", max_relative_error=4e-12,
        tolerance=1e-9,
    ),
)  # fmt: skip

ROW = share_of(op="forward.0/qkv", first_count=8, second_count=9, first_s=1e-3, second_s=2e-3, difference_s=-1e-3,
               share_fraction=0.5)  # fmt: skip
COMPARISON = comparison_of(
    names=("simulated", "executed"), first_s=0.1, second_s=0.2,
    aligned=AlignedOps(by_name=1234, by_kind=5, first_alone=6, second_alone=0),
    kind_error={"compute": 0.25}, stream_error={"tp": -0.125},
    step_time=(StepPart(part="exposed_communication", first_s=0.01, second_s=0.03),),
    critical_path=(PathPart(kind="all_reduce", first_s=0.0, second_s=0.004),),
    rows=(ROW,), others=replace(ROW, op="all other ops"), idle=replace(ROW, op="idle", difference_s=0.0),
)  # fmt: skip


def print_execution(summary: ExecutionSummary, console: Console) -> None:
    """Print an execution."""
    print_blocks(execution_blocks(summary), console)


def printed(show: Any, summary: Any, **changes: object) -> str:
    """Return what a function prints of a summary with other values."""
    out = StringIO()
    show(replace(summary, **changes), Console(file=out, width=120))
    return out.getvalue()


def test_execution_answers_in_words() -> None:
    """Times beside each other, the fullest rank's memory, the work, the check."""
    shown = printed(print_execution, EXECUTION)
    for words in ("Tiny, 4 ranks, run with torch", "200 ms; simulated: 100 ms (-50.0 %; 90 %: 90 ms to 150 ms)",
                  "1.00 GiB on pp=0", "the same: 1,674 ops", "passed: 214 tensors",
                  "4e-12 off (at most 1e-09)"):  # fmt: skip
        assert words in shown


def test_execution_says_what_is_not_as_simulated() -> None:
    """Other memory, other work and a failed check are named."""
    work = ExecutedWork(ops=1674, same_work=False, mismatches={"order": 2})
    check = replace(EXECUTION.check, check_passed=False, max_relative_error=None)
    shown = printed(print_execution, EXECUTION, same_peak_memory=False, work=work, check=check)
    for words in ("NOT AS SIMULATED (2.00 GiB there)", "NOT THE SAME: of 1,674 ops 2 have another order", "FAILED",
                  "no finite number"):  # fmt: skip
        assert words in shown


def test_a_check_on_cpus_says_that_it_computes_in_float64() -> None:
    """Where the scenario states another precision, a simulation of it moves other bytes: the answer says why."""
    assert "214 float64 tensors against" in printed(print_execution, EXECUTION, num_cores=2)
    assert "214 tensors against" in printed(print_execution, EXECUTION, num_cores=None)


def test_page_of_an_execution_has_the_median_of_drawn_runs() -> None:
    """Its timeline is that of the run without draws, and the terminal compares with the median: both stand there."""
    drawn = replace(EXECUTION, simulated_iteration_time_median_s=0.15, profile_basis="assumed", num_cores=2)
    assert card_notes_of(drawn) == ("uncalibrated, median of drawn runs 150 ms", "4 ranks on 2 cores")
    assert card_notes_of(replace(drawn, simulated_iteration_time_median_s=0.1))[0] == "uncalibrated"


def test_every_mismatch_has_words() -> None:
    """Each kind of mismatch that a comparison counts is said of the ops that have it."""
    work = ExecutedWork(ops=9, same_work=False, mismatches=dict.fromkeys(get_args(What), 3))
    shown = printed(print_execution, EXECUTION, work=work)
    assert "NOT THE SAME: of 9 ops 3 are missing, 3 are extra, 3 have other names" in shown


def test_execution_leaves_out_what_was_not_asked_for() -> None:
    """Without --check and --timing op there is neither check nor work to report."""
    shown = printed(print_execution, EXECUTION, work=None, check=None)
    assert "check" not in shown
    assert "work" not in shown


def test_comparison_gives_both_times_and_the_largest_differences() -> None:
    """The first against the second, by kind, by stream, and op by op."""
    shown = printed(print_comparison, COMPARISON)
    for words in ("100 ms (simulated) against 200 ms (executed): -50.0 %", "forward.0/qkv", "50.0 %",
                  "compute +25.0 %", "tp -12.5 %",
                  "1,234 ops by name, 5 by kind and place, 6 in simulated alone, 0 in executed", "8 | 9",
                  "exposed communication", "-20 ms", "critical path: all_reduce", "all other ops"):  # fmt: skip
        assert words in shown
    assert "FAILED" not in shown
    assert "FAILED" in printed(print_comparison, COMPARISON, passed=False)


def test_plan_larger_than_the_computer_is_refused(write) -> None:
    """One process per rank: 1,536 ranks of 40 GiB and more are refused before any process starts."""
    plan = plan_of(load_scenario(write()))
    with pytest.raises(ScenarioError, match=r"1,536 ranks on this computer need at least 7\d{4}\.\d\d GiB"):
        refuse_too_large(plan, 2**34)
    refuse_too_large(plan, 2**47)


def test_what_may_be_off_stands_beside_the_difference() -> None:
    """An uncalibrated profile and ranks that share cores are named; a measured one with a core each is not."""
    words = printed(print_execution, EXECUTION, profile_basis="assumed", num_cores=2)
    assert "uncalibrated; 4 ranks on 2 cores)" in words
    quiet = printed(print_execution, EXECUTION, profile_basis="measured", num_cores=4)
    assert "uncalibrated" not in quiet
    assert "cores" not in quiet
    both = printed(print_comparison, COMPARISON, notes=("uncalibrated", "4 ranks on 2 cores"))
    assert "100 ms (simulated, uncalibrated) against 200 ms (executed, 4 ranks on 2 cores)" in both
