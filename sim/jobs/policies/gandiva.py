"""Gandiva (Xiao et al., OSDI 2018): time slices, packing, migration, and growth into idle GPUs.

Nobody's duration or goal counts. All jobs take turns of a slice. Of those without a turn, some share the GPUs of one
that has it (``packing``). A job that lies on more nodes than it needs moves when others leave room. An elastic job
grows into GPUs that nobody asks for, and gives them back when somebody does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ranking
from sim.jobs.placement import Placement, consolidated
from sim.jobs.policies.packing import Pack, Pair, changes_to, failed, guests_of, packs_of
from sim.jobs.policy import Change, Decision, View

ROUNDING: Final = 1e-9
"""Relative error of the end of a slice."""


@dataclass(frozen=True)
class GandivaState:
    """The turns that each job has had, by its index, and the end of the present slice.

    ``apart``: pairs that were slower together than one of them alone.
    """

    turns: Mapping[int, int] = field(default_factory=dict)
    slice_ends_s: float = 0.0
    apart: frozenset[Pair] = frozenset()


@dataclass(frozen=True)
class Gandiva:
    """The jobs with the fewest turns run for ``slice_s``; in between, jobs that wait take free and grown GPUs.

    ``packs``: whether jobs share GPUs.
    """

    slice_s: float = 60.0
    packs: bool = True
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
        ends_s, apart = state.slice_ends_s, state.apart
        if begins:
            ends_s, apart = view.now_s + self.slice_s, apart | failed(view)
            chosen = self._gangs(view, [], packs_of(view, 1.0 if self._is_crowded(view) else 2.0), turns)
            chosen = self._with_guests(view, chosen, apart)
            sizes = self._grown(view, chosen, turns)
        else:
            packs = packs_of(view, 0.0)
            chosen = self._gangs(view, [pack for pack in packs if pack[0].is_running], packs, turns)
            sizes = self._shrunk(view, chosen)
        new = [each.index for pack in chosen for each in pack if begins or not each.is_running]
        turns |= {index: turns[index] + 1 for index in new}
        changes = changes_to(view, chosen, sizes)
        if not changes and begins:
            changes = self._migration(view)
        return GandivaState(turns, ends_s, apart), Decision(changes, ends_s)

    def _turns(self, state: GandivaState, view: View) -> dict[int, int]:
        """Return the turns of all jobs; a new one has as many as the job with the fewest."""
        known = [state.turns[each.index] for each in view.active if each.index in state.turns]
        fewest = min(known, default=0)
        return {each.index: state.turns.get(each.index, fewest) for each in view.active}

    def _is_crowded(self, view: View) -> bool:
        """Return whether not all jobs have room, each on GPUs of its own."""
        return sum(self._asked(view, each) for each in view.active) > view.capacity

    def _gangs(
        self, view: View, kept: Sequence[Pack], packs: Sequence[Pack], turns: Mapping[int, int]
    ) -> Sequence[Pack]:
        """Return the packs that run: those that are kept, then by turns whoever fits."""
        chosen, left = list(kept), view.capacity - sum(self._asked(view, pack[0]) for pack in kept)
        held = {pack[0].index for pack in kept}
        for pack in sorted(packs, key=lambda pack: (min(turns[each.index] for each in pack), pack[0].index)):
            if pack[0].index not in held and self._asked(view, pack[0]) <= left:
                left -= self._asked(view, pack[0])
                chosen.append(pack)
        return chosen

    def _with_guests(self, view: View, chosen: Sequence[Pack], apart: frozenset[Pair]) -> Sequence[Pack]:
        """Return the chosen packs, some with a job that has no turn; a job that runs is the host."""
        if not self.packs:
            return chosen
        held = {each.index for pack in chosen for each in pack}
        left_out = [each for each in view.active if each.index not in held]
        alone = [pack[0] for pack in chosen if len(pack) == 1]
        hosts = [each for each in alone if self._asked(view, each) == each.job.num_gpus]
        guests = guests_of(hosts, left_out, apart, view.now_s)
        shared = {index: (*pack, guests[index]) for pack in chosen if (index := pack[0].index) in guests}
        return [tuple(sorted(shared.get(pack[0].index, pack), key=lambda each: not each.is_running)) for pack in chosen]

    def _asked(self, view: View, each: ActiveJob) -> int:
        """Return what a job asks for; while nodes are down, no more than there is of an elastic one."""
        return each.job.num_gpus if each.job.training is None else min(each.job.num_gpus, view.capacity)

    def _grown(self, view: View, chosen: Sequence[Pack], turns: Mapping[int, int]) -> dict[int, int]:
        """Return the GPUs of each pack, by its first job: elastic ones that are alone double into what is left.

        Those with the most turns come last.
        """
        sizes = {pack[0].index: self._asked(view, pack[0]) for pack in chosen}
        left = view.capacity - sum(sizes.values())
        alone = [pack[0] for pack in chosen if len(pack) == 1 and pack[0].job.training is not None]
        for each in sorted(alone, key=lambda each: (turns[each.index], each.index)):
            more = max(0, min(left, sizes[each.index], each.job.most_gpus - sizes[each.index]))
            sizes[each.index] += more
            left -= more
        return sizes

    def _shrunk(self, view: View, chosen: Sequence[Pack]) -> dict[int, int]:
        """Return the GPUs of each pack, by its first job, within a slice: grown jobs keep what nobody asks for."""
        sizes = {pack[0].index: self._asked(view, pack[0]) for pack in chosen}
        left = view.capacity - sum(sizes.values())
        for each, *_ in chosen:
            more = min(left, max(0, each.num_gpus - sizes[each.index]))
            sizes[each.index] += more
            left -= more
        return sizes

    def _migration(self, view: View) -> list[Change]:
        """Return the move of the first job, alone on its GPUs, that would then lie on fewer nodes."""
        for each in view.running.values():
            placement = self._closer(view, each) if each.partner is None else None
            if placement is not None:
                return [Change(each, each.num_gpus, "fewer nodes have room", placement)]
        return []

    def _closer(self, view: View, each: ActiveJob) -> Placement | None:
        """Return a placement of a running job on fewer nodes than now, or None."""
        if len(each.placement) <= view.num_nodes(each.num_gpus):
            return None
        free = list(view.gpus_per_node)
        for other in view.running.values():
            for node, count in other.placement if other is not each and not other.is_guest else ():
                free[node] -= count
        placement = consolidated(free, each.num_gpus)
        return placement if placement is not None and len(placement) < len(each.placement) else None
