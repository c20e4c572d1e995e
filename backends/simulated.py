"""The simulated backend: cost models say how long each operation takes."""

from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

from msgspec.structs import replace

from backends.protocol import Backend
from sim.engine.findings import timeline as run_timeline
from sim.engine.folding.folding import fold as fold_ranks
from sim.engine.folding.folding import no_fold
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import Notice, Simulation
from sim.plan.checking.check import check
from sim.plan.errors import CheckError, SessionError
from sim.plan.facts import rank_work
from sim.plan.facts.namesakes import apart, sharing_tasks
from sim.plan.session import observations as observed
from sim.plan.session import protocol
from sim.plan.session import residents as persistent
from sim.plan.words.program import Plan
from traces import timeline as timelines


class SimulatedBackend(Backend):
    """Simulates plans with given prices. ``detail``: rows per op or per task; None: by the plan's size.

    ``observations``: the source of observed values in its sessions. ``notice``: called before a plan is run, once it
    is known which ranks are alike, and again where a plan that might have repeated itself does not.
    """

    def __init__(
        self,
        pricing: Pricing,
        fold: bool = True,
        detail: Literal["op", "task"] | None = None,
        observations: "observed.Observations | None" = None,
        notice: Notice | None = None,
    ) -> None:
        self.pricing, self._fold, self._detail, self._notice = pricing, fold, detail, notice
        self._observations = observations

    def session(self, num_ranks: int) -> "SimulatedSession":
        """Return a session of so many ranks."""
        return SimulatedSession(num_ranks, self.pricing, self._observations, fold=self._fold, notice=self._notice)

    def simulate(self, plan: Plan) -> SimulatedRun:
        """Return the whole run: times, graph and counts. Raises CheckError for a plan that cannot run."""
        return repriced(simulation_of(plan, fold=self._fold, notice=self._notice), self.pricing)

    def run(self, plan: Plan) -> "timelines.Timeline":
        """Return the timeline of one step of ``plan``."""
        return run_timeline.timeline(self.simulate(plan), self._detail)


class SimulatedSession:
    """Simulated ranks that run one plan after the other, each plan like a step in the engine.

        with SimulatedSession(4, pricing) as session:
            result = session.step(plan)

    It knows the place of every persistent buffer, not its values; ``observations`` supplies the values for a policy. A
    rank of the session lies on the device with its number, whatever its number in a plan.
    """

    def __init__(
        self,
        num_ranks: int,
        pricing: Pricing,
        observations: "observed.Observations | None" = None,
        *,
        fold: bool = True,
        notice: Notice | None = None,
    ) -> None:
        self._num_ranks, self._pricing, self._fold, self._notice = num_ranks, pricing, fold, notice
        self._observations = observations or observed.NoObservations()
        self._residents = persistent.Residents()
        self._is_open = False

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks of the session."""
        return self._num_ranks

    @property
    def residents(self) -> "persistent.Residents":
        """Return the persistent buffers that the steps so far have left on every rank."""
        return self._residents

    def step(self, plan: Plan) -> "protocol.StepResult":
        """Run a plan to its end and return the result. All ranks begin together.

        Raises CheckError for a plan that cannot run, SessionError for a plan that does not fit the buffers left by
        earlier plans, RecordingError for a plan other than the recorded one.
        """
        if not self._is_open:
            raise SessionError("the session is not open: use it in a with statement")
        check(plan)
        self._residents.check(plan, self._num_ranks)
        simulation = _simulation(replace(plan, barrier=True), fold=self._fold, notice=self._notice)
        run = repriced(simulation, self._pricing)
        seen = self._observations.seen(self._residents.num_plans, plan, run.makespan_s)
        self._residents = self._residents.after(plan)
        return protocol.StepResult(run.makespan_s, seen, _work(plan, run))

    def close(self) -> None:
        """End the session."""
        self._is_open = False

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def simulation_of(
    plan: Plan, *, fold: bool = True, notice: Notice | None = None, like: Simulation | None = None
) -> Simulation:
    """Return the simulation of a plan, to be run under one set of prices after the other (see ``repriced``).

    ``like``: that of a plan which may be alike; what was compiled of it is then shared, and so are its options.

    Raises CheckError for a plan that cannot run.
    """
    plan = _checked(plan)
    shared = None if like is None else like.of_alike(plan)
    return shared or _simulation(plan, fold=fold, notice=notice)


def _checked(plan: Plan) -> Plan:
    """Return a plan whose programs share tasks where they can. Raises CheckError for a plan that cannot run."""
    shared = sharing_tasks(plan)
    try:
        check(shared)
    except CheckError:
        check(apart(plan))  # says where in a program's own names
        raise
    return shared


def repriced(simulation: Simulation, pricing: Pricing) -> SimulatedRun:
    """Return the run of a simulation's plan under some prices."""
    ranks = simulation.plan.ranks
    return simulation.run(_placed(pricing, ranks) if ranks else pricing)


def _simulation(plan: Plan, *, fold: bool, notice: Notice | None) -> Simulation:
    return Simulation(plan, fold_ranks if fold else no_fold, repeat=fold, notice=notice)


def _placed(pricing: Pricing, ranks: Sequence[int]) -> Pricing:
    """Return the prices for a plan whose ranks lie on these devices, by number. Textbook prices know no devices."""
    return pricing.placed(ranks) if isinstance(pricing, ClusterPricing) else pricing


def _work(plan: Plan, run: SimulatedRun) -> "dict[int, rank_work.RankWork]":
    """Return the work of each rank: that of the simulated rank with its program."""
    by_program: dict[int, rank_work.RankWork] = {}
    for rank, program in run.programs.items():
        by_program[id(run.plan.program_of(rank))] = rank_work.program_work(plan, program, run.num_calls(rank))
    return {
        plan.session_ranks[rank]: by_program[id(program)]
        for program in plan.programs
        for rank in plan.ranks_of(program)
    }
