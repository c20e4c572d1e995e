"""A training with a lock-free update, run with torch in one process."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct

from backends.execution.errors import ExecutionError
from backends.execution.lock_free import LockFreeExecution, LockFreeRequest
from backends.registry import load_torch_backend
from costmodels.units import format_bytes, format_time
from scenarios.report.blocks import Block, Fact, Piece
from scenarios.report.pages.executed import executed_blocks
from scenarios.results.registry import load_writer
from scenarios.workloads.executing import Executed, ExecutionOptions, refuse_options
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.workload import unable

_TOLERANCE = 1e-9


class ExecutedLockFreeSummary(Struct, frozen=True, kw_only=True):
    """What a training with an update of its own pace did, in one process.

    ``step_s``: the median step after the first. ``gradients_per_update``, ``most_gradients_per_update``: steps whose
    gradients an update applied; ``most_staleness``: the most gradients that parameters lacked when a step began.
    ``num_made``, ``num_applied``: gradients of units. ``differing_weights``: weights whose bits are not those of the
    same updates in one thread. ``max_relative_error``: from synchronous training, of ``max_staleness`` 0 alone.
    """

    schema: str = "meshtwin.lock_free_execution/1"
    scenario: str
    seed: int
    num_steps: int
    max_staleness: int | None
    step_s: float
    num_updates: int
    gradients_per_update: float
    most_gradients_per_update: int
    most_staleness: int
    num_made: int
    num_applied: int
    page_bytes: int
    num_weights: int
    differing_weights: int | None
    max_relative_error: float | None
    passed: bool


@dataclass(frozen=True, slots=True)
class ExecutedLockFree(Executed):
    """A training whose optimizer was a thread of its own."""

    summary: ExecutedLockFreeSummary

    def blocks(self) -> Sequence[Block]:
        """Return the report."""
        found = self.summary
        bound = "no bound" if found.max_staleness is None else f"at most {found.max_staleness} allowed"
        facts = [
            Fact("step", format_time(found.step_s)),
            Fact("update", f"{found.num_updates:,}, with up to {found.most_gradients_per_update:,} steps' gradients"),
            Fact("staleness", f"up to {found.most_staleness:,} gradients, {bound}"),
            Fact("gradients", f"{found.num_made:,} made, {found.num_applied:,} applied"),
            Fact("page file", format_bytes(found.page_bytes)),
        ]
        if found.differing_weights is not None:
            good = not found.differing_weights
            of = "all" if good else f"{found.num_weights - found.differing_weights:,} of"
            words = f"{of} {found.num_weights:,} weights have the bits of the same updates in one thread"
            facts.append(Fact("check", (Piece(words, "good" if good else "bad"),)))
        if found.max_relative_error is not None:
            words = f"{found.max_relative_error:.2g} off synchronous training (at most {_TOLERANCE:g})"
            facts.append(Fact("synchronous", (Piece(words, "good" if found.passed else "bad"),)))
        return executed_blocks(found.scenario, f"{found.num_steps:,} steps, run with torch", facts)

    def write(self, out: Path) -> None:
        """Write summary.json and report.html into a folder."""
        load_writer()(self.as_json(), None, self.blocks(), out)


def execute_lock_free(scenario: StepScenario, options: ExecutionOptions) -> ExecutedLockFree:
    """Return what a training with a lock-free update did. Raises ScenarioError for one that one process cannot run."""
    refuse_options(options, "trainings with a lock-free update", but=("check", "steps"))
    job = scenario.in_double_precision().decided().dense_job
    assert job is not None
    memory = job.parallel.memory
    assert memory is not None
    if job.parallel.world_size > 1:
        rule, remedy = "a lock-free update is executed in one process", "write degrees of 1"
        raise unable(scenario, rule, remedy)
    if job.training.optimizer != "adam" or job.model.experts is not None:
        raise unable(scenario, "a lock-free update is executed of Adam on a model without experts", "simulate it")
    request = LockFreeRequest(
        job=job, steps=options.steps, folder=Path(tempfile.gettempdir()), max_staleness=memory.max_staleness,
        check=options.check,
    )  # fmt: skip
    found = load_torch_backend().train_lock_free(request)
    return ExecutedLockFree(_summary(scenario, memory.max_staleness, found))


def _summary(scenario: StepScenario, max_staleness: int | None, found: LockFreeExecution) -> ExecutedLockFreeSummary:
    if not found.gradients:
        raise ExecutionError("no update was made")
    is_right = found.num_made == found.num_applied and not found.differing_weights
    return ExecutedLockFreeSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        num_steps=len(found.step_times_s),
        max_staleness=max_staleness,
        step_s=median(found.step_times_s[1:]),
        num_updates=len(found.gradients),
        gradients_per_update=fmean(found.gradients),
        most_gradients_per_update=max(found.gradients),
        most_staleness=max(found.staleness),
        num_made=found.num_made,
        num_applied=found.num_applied,
        page_bytes=found.page_bytes,
        num_weights=found.num_weights,
        differing_weights=found.differing_weights,
        max_relative_error=found.max_error,
        passed=is_right and (found.max_error is None or found.max_error <= _TOLERANCE),
    )
