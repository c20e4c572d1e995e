"""The view and the decisions of a scheduling policy. Policies are pure: they know no clock, no SimPy, no torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from heapq import merge
from typing import Any, Protocol

from msgspec import Struct

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ordered, Rank, Ranked, Ranking
from sim.jobs.placement import FreeGpus, Placement, fewest_nodes


class View(Struct, frozen=True):
    """The cluster at a decision.

    ``waiting``: in order of arrival. ``running``: by index. ``free_gpus``: held by no job. ``waiting_gpus``: requests
    of all waiting jobs. ``gpus_per_node``: of each node, 0 while it is down. ``node_types``: the type of GPU of each
    node; empty: one type. ``ordered``: the jobs in the order of the policy's ranking;
    None where it has none.
    """

    now_s: float
    waiting: Sequence[ActiveJob]
    running: Mapping[int, ActiveJob]
    free_gpus: int
    waiting_gpus: int
    gpus_per_node: Sequence[int]
    ordered: Ordered | None = None
    node_types: Sequence[str] = ()

    @property
    def gpu_types(self) -> Sequence[str]:
        """Return the types of GPU, those of the first nodes first; one without a name where nodes have none."""
        return list(dict.fromkeys(self.node_types)) or [""]

    def num_gpus_of(self, gpu_type: str) -> int:
        """Return all GPUs of a type."""
        types = self.node_types or [""] * len(self.gpus_per_node)
        return sum(count for count, name in zip(self.gpus_per_node, types, strict=True) if name == gpu_type)

    def type_of(self, each: ActiveJob) -> str:
        """Return the type of GPU that a running job holds first."""
        return self.node_types[each.placement[0][0]] if self.node_types else ""

    @property
    def capacity(self) -> int:
        """Return all GPUs."""
        return sum(self.gpus_per_node)

    @property
    def active(self) -> Sequence[ActiveJob]:
        """Return all jobs that are not done, in order of arrival."""
        return sorted((*self.waiting, *self.running.values()), key=lambda each: each.index)

    def num_nodes(self, num_gpus: int) -> int:
        """Return the fewest nodes that hold a number of GPUs."""
        return fewest_nodes(self.gpus_per_node, num_gpus)


class Change(Struct, frozen=True):
    """A job that holds other GPUs from now on, and why: ``num_gpus`` of them, 0 if it stops.

    ``placement``: on these nodes; None: on nodes that the simulator chooses, of a ``gpu_type`` if there is one.
    ``beside``: on all GPUs of this job, which runs by then, shared with it.
    """

    job: ActiveJob
    num_gpus: int
    why: str
    placement: Placement | None = None
    gpu_type: str | None = None
    beside: ActiveJob | None = None

    @property
    def needs_new_gpus(self) -> bool:
        """Return whether the job gets GPUs that it does not hold yet."""
        held = dict(self.job.placement)
        return self.num_gpus > self.job.num_gpus or any(
            count > held.get(node, 0) for node, count in self.placement or ()
        )

    def placed_on(self, free: FreeGpus) -> Placement:
        """Return the nodes of the GPUs: the policy's, or few with free GPUs. Raises ValueError if too few are free."""
        if self.beside is not None:
            return self.beside.placement
        placement = self.placement or free.place(self.num_gpus, self.gpu_type)
        if placement is None:
            raise ValueError(f"job {self.job.job.id} gets {self.num_gpus} GPUs of {free.total} free")
        return placement


class Decision(Struct, frozen=True):
    """Changes; all other jobs go on. ``wake_s``: decide again at this instant at the latest."""

    changes: Sequence[Change] = ()
    wake_s: float | None = None


class Policy(Protocol):
    """Decides which jobs hold which GPUs. ``State`` is whatever it remembers; it is returned, never changed in place.

    state = policy.start()
    state, decision = policy.decide(state, view)
    """

    @property
    def name(self) -> str:
        """Return its name in results and errors."""

    @property
    def watched_gpu_s(self) -> tuple[float, ...]:
        """Return services: a running job that attains one brings a decision."""

    @property
    def ranking(self) -> Ranking | None:
        """Return the order in which jobs are kept for it, or None."""

    def start(self) -> Any:
        """Return the state before the first decision."""

    def decide(self, state: Any, view: View) -> tuple[Any, Decision]:
        """Return the state after a decision, and the decision."""


class Memoryless(ABC):
    """A policy whose decisions depend on the view alone."""

    watched_gpu_s: tuple[float, ...] = ()

    @property
    def ranking(self) -> Ranking | None:
        """Return the order in which jobs are kept: none."""
        return None

    def start(self) -> tuple[()]:
        """Return nothing to remember."""
        return ()

    def decide(self, state: tuple[()], view: View) -> tuple[tuple[()], Decision]:
        """Return nothing to remember, and the decision."""
        return state, Decision(self.changes(view), self.wake_s(view))

    @abstractmethod
    def changes(self, view: View) -> Sequence[Change]:
        """Return the changes for a view."""

    def wake_s(self, view: View) -> float | None:
        """Return the instant of the next decision if nothing happens before, or None."""
        del view
        return None


def start_fitting(view: View, order: Sequence[ActiveJob], why: str) -> list[Change]:
    """Return starts of waiting jobs, in an order, that fit into the free GPUs; the others are skipped."""
    free, found = view.free_gpus, []
    for each in order:
        if free <= 0:
            break
        if each.job.num_gpus <= free:
            free -= each.job.num_gpus
            found.append(Change(each, each.job.num_gpus, why))
    return found


def first_gangs(view: View, rank: Callable[[ActiveJob], Rank], why: str) -> list[Change]:
    """Return the changes that let the jobs of least rank run, whoever runs now; a job that does not fit is skipped.

    Ranks end with the job's index, so no two are equal. Running jobs of a lower rank than all waiting ones go on.
    """
    waiting = view.ordered.waiting if view.ordered else sorted((rank(each), each) for each in view.waiting)
    if view.waiting_gpus <= view.free_gpus:
        return start_fitting(view, [each for _, each in waiting], why)
    stoppable = _behind(view, rank, waiting[0][0])
    left = view.free_gpus + sum(each.num_gpus for _, each in stoppable)
    stops, starts = {each.index: each for _, each in stoppable}, []
    for _, each in merge(waiting, stoppable):
        if left <= 0:
            break
        if each.job.num_gpus <= left:
            left -= each.job.num_gpus
            if not stops.pop(each.index, None):
                starts.append(Change(each, each.job.num_gpus, why))
    return [Change(each, 0, f"others come first: {why}") for each in stops.values()] + starts


def _behind(view: View, rank: Callable[[ActiveJob], Rank], first: Rank) -> list[Ranked]:
    """Return the running jobs that might have to stop, the least first: those of higher rank than the first that waits.

    Where jobs are kept in order, the last ones suffice: as many as leave room for all that wait before the others.
    """
    if view.ordered is None:
        ranked = ((rank(each), each) for each in view.running.values())
        return sorted((its, each) for its, each in ranked if its > first)
    found: list[Ranked] = []
    for place, each in reversed(view.ordered.running):
        most = view.ordered.most(place, view.now_s)
        last = [(its, other) for its, other in found if its >= most]
        if _has_room(view.ordered.waiting, most, view.free_gpus + sum(other.num_gpus for _, other in last)):
            return sorted(last)
        found.append((rank(each), each))
    return sorted(found)


def _has_room(waiting: Sequence[Ranked], most: Rank, num_gpus: int) -> bool:
    """Return whether the waiting jobs of lower rank than ``most`` fit into so many GPUs, all together."""
    for its, each in waiting:
        if its >= most:
            return True
        num_gpus -= each.job.num_gpus
        if num_gpus < 0:
            return False
    return True
