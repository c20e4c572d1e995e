"""Gandiva (Xiao et al., OSDI 2018) without packing: time slices, migration, and growth into idle GPUs.

Nobody's duration or goal counts. All jobs take turns of a slice. A job that lies on more nodes than it needs moves when
others leave room. An elastic job grows into GPUs that nobody asks for, and gives them back when somebody does. Gandiva
also packs jobs onto one GPU where profiles show that this pays; here a GPU has one job at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ranking
from sim.jobs.placement import Placement, consolidated
from sim.jobs.policy import Change, Decision, View

ROUNDING: Final = 1e-9
"""Relative error of the end of a slice."""


@dataclass(frozen=True)
class GandivaState:
    """The turns that each job has had, by its index, and the end of the present slice."""

    turns: Mapping[int, int] = field(default_factory=dict)
    slice_ends_s: float = 0.0


@dataclass(frozen=True)
class Gandiva:
    """The jobs with the fewest turns run for ``slice_s``; in between, jobs that wait take free and grown GPUs."""

    slice_s: float = 60.0
    name = "gandiva"
    watched_gpu_s: tuple[float, ...] = ()
    ranking: Ranking | None = None

    def start(self) -> GandivaState:
        """Return the state before the first slice."""
        return GandivaState()

    def decide(self, state: GandivaState, view: View) -> tuple[GandivaState, Decision]:
        """Return the turns and the changes of a slice, or within it."""
        turns = self._turns(state, view)
        begins = state.slice_ends_s <= view.now_s * (1.0 + ROUNDING)
        ends_s = view.now_s + self.slice_s if begins else state.slice_ends_s
        kept = [] if begins else list(view.running.values())
        chosen = self._gangs(view, kept, turns)
        sizes = self._grown(view, chosen, turns) if begins else self._shrunk(view, chosen)
        new = [each for each in chosen if begins or not each.is_running]
        turns |= {each.index: turns[each.index] + 1 for each in new}
        changes = [
            Change(each, sizes.get(each.index, 0), "its slice begins" if each.index in sizes else "its slice has ended")
            for each in view.active if sizes.get(each.index, 0) != each.num_gpus
        ]  # fmt: skip
        if not changes and begins:
            changes = self._migration(view)
        return GandivaState(turns, ends_s), Decision(changes, ends_s)

    def _turns(self, state: GandivaState, view: View) -> dict[int, int]:
        """Return the turns of all jobs; a new one has as many as the job with the fewest."""
        known = [state.turns[each.index] for each in view.active if each.index in state.turns]
        fewest = min(known, default=0)
        return {each.index: state.turns.get(each.index, fewest) for each in view.active}

    def _gangs(self, view: View, kept: Sequence[ActiveJob], turns: Mapping[int, int]) -> list[ActiveJob]:
        """Return the jobs that run: those that are kept, then by turns whoever fits."""
        chosen, left = list(kept), view.capacity - sum(self._asked(view, each) for each in kept)
        held = {each.index for each in kept}
        for each in sorted(view.active, key=lambda each: (turns[each.index], each.index)):
            if each.index not in held and self._asked(view, each) <= left:
                left -= self._asked(view, each)
                chosen.append(each)
        return chosen

    def _asked(self, view: View, each: ActiveJob) -> int:
        """Return what a job asks for; while nodes are down, no more than there is of an elastic one."""
        return each.job.num_gpus if each.job.training is None else min(each.job.num_gpus, view.capacity)

    def _grown(self, view: View, chosen: Sequence[ActiveJob], turns: Mapping[int, int]) -> dict[int, int]:
        """Return the GPUs of each chosen job: elastic ones double into what is left, those with the most turns last."""
        sizes = {each.index: self._asked(view, each) for each in chosen}
        left = view.capacity - sum(sizes.values())
        for each in sorted(chosen, key=lambda each: (turns[each.index], each.index)):
            more = min(left, sizes[each.index], each.job.most_gpus - sizes[each.index])
            if each.job.training is not None and more > 0:
                sizes[each.index] += more
                left -= more
        return sizes

    def _shrunk(self, view: View, chosen: Sequence[ActiveJob]) -> dict[int, int]:
        """Return the GPUs of each chosen job within a slice: grown ones keep what nobody asks for."""
        sizes = {each.index: self._asked(view, each) for each in chosen}
        left = view.capacity - sum(sizes.values())
        for each in chosen:
            more = min(left, max(0, each.num_gpus - sizes[each.index]))
            sizes[each.index] += more
            left -= more
        return sizes

    def _migration(self, view: View) -> list[Change]:
        """Return the move of the first job that would then lie on fewer nodes."""
        for each in view.running.values():
            placement = self._closer(view, each)
            if placement is not None:
                return [Change(each, each.num_gpus, "fewer nodes have room", placement)]
        return []

    def _closer(self, view: View, each: ActiveJob) -> Placement | None:
        """Return a placement of a running job on fewer nodes than now, or None."""
        if len(each.placement) <= view.num_nodes(each.num_gpus):
            return None
        free = list(view.gpus_per_node)
        for other in view.running.values():
            for node, count in other.placement if other is not each else ():
                free[node] -= count
        placement = consolidated(free, each.num_gpus)
        return placement if placement is not None and len(placement) < len(each.placement) else None
