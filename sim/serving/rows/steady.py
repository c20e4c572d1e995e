"""Sequences that all get one token in each step: what a step changes is alike for all, and is counted once."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush

from msgspec import Struct

from sim.serving.prices.steps import ContextTimes, Run, even_steps
from sim.serving.rows.row import GoneRow, Row


class _Member(Struct, frozen=True, gc=False):
    """A row with numbers that stay the same while it decodes.

    ``joined_at``, ``done_at``: steps of the clock at which it joined, and at which its answer is complete.
    ``offset``: tokens in private blocks less steps of the clock.
    """

    row: Row
    joined_at: int
    done_at: int
    offset: int


class SteadyRows:
    """Sequences that get a token per step. ``clock``: steps so far.

    Each has just the private blocks for ``ahead`` tokens more: ceil((offset + clock + ahead) / block_tokens). With
    offset + block_tokens - 1 = whole x block_tokens + rest, their sum follows from the sum of ``whole`` and the sorted
    rests.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.clock = self.ahead = self.num_blocks = 0
        self._members: dict[int, _Member] = {}
        self._ends: list[tuple[int, int, _Member]] = []
        self._num_joined = self._sum_offsets = self._sum_shared = self._sum_whole = 0
        self._rests: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    @property
    def sum_held(self) -> int:
        """Return the tokens whose keys and values they keep together."""
        return self._sum_offsets + self._sum_shared + self.clock * len(self._members)

    def add(self, row: Row) -> None:
        """Add a sequence at the end."""
        if not self._members:
            self.ahead = 0
        member = _Member(row, self.clock, self.clock + row.left, row.held - row.shared - self.clock)
        self._members[row.request] = member
        heappush(self._ends, (member.done_at, self._num_joined, member))
        self._num_joined += 1
        self._sum_offsets += member.offset
        self._sum_shared += row.shared
        whole, rest = self._whole_and_rest(member)
        self._sum_whole += whole
        insort(self._rests, rest)
        self.num_blocks += self._blocks_of(member)

    def steps_left(self, most: int) -> int:
        """Return the steps until the first of them wants no more tokens, at most ``most``."""
        return min(self._ends[0][0] - self.clock, most) if self._any_ends() else most

    def lacking(self, num_steps: int) -> int:
        """Return the private blocks that they lack for so many steps more."""
        return max(0, self._blocks_for(num_steps) - self.num_blocks)

    def hold(self, num_steps: int) -> None:
        """Count the private blocks that they lack for so many steps more as theirs."""
        if num_steps > self.ahead:
            self.loosen(num_steps)

    def loosen(self, num_steps: int) -> int:
        """Leave them just the private blocks for so many steps more, and return how many they had beside."""
        before, self.ahead, self.num_blocks = self.num_blocks, num_steps, self._blocks_for(num_steps)
        return before - self.num_blocks

    def run(self, times: ContextTimes, num_steps: int, draft_s: float) -> Run:
        """Return so many steps with their times; nothing is drafted."""
        del draft_s
        return even_steps(times, self.sum_held / len(self._members) + 1, num_steps)

    def decode(self, num_steps: int) -> None:
        """Let so many decoding iterations pass, for which they have blocks."""
        self.clock += num_steps
        self.ahead -= num_steps

    def take_done(self) -> Sequence[GoneRow]:
        """Remove the sequences that want no more tokens, and return them in order."""
        found = []
        while self._any_ends() and self._ends[0][0] == self.clock:
            request = heappop(self._ends)[2].row.request
            found.append(self._gone(self._members.pop(request)))
        return found

    def take_last(self) -> GoneRow:
        """Remove the sequence that joined last, and return it."""
        return self._gone(self._members.popitem()[1])

    def take_all(self) -> Sequence[GoneRow]:
        """Remove all sequences, and return them in order."""
        members = list(self._members.values())
        self._members.clear()
        self._ends.clear()
        return [self._gone(member) for member in members]

    def _any_ends(self) -> bool:
        """Forget the first ends of sequences that left before them, and return whether there are others."""
        while self._ends and self._members.get(self._ends[0][2].row.request) is not self._ends[0][2]:
            heappop(self._ends)
        return bool(self._ends)

    def _gone(self, member: _Member) -> GoneRow:
        """Take a sequence that left out of all sums."""
        whole, rest = self._whole_and_rest(member)
        blocks, row, steps = self._blocks_of(member), member.row, self.clock - member.joined_at
        self._sum_offsets -= member.offset
        self._sum_shared -= row.shared
        self._sum_whole -= whole
        self.num_blocks -= blocks
        del self._rests[bisect_left(self._rests, rest)]
        return GoneRow(row.request, blocks, steps, steps, row.stall_s)

    def _whole_and_rest(self, member: _Member) -> tuple[int, int]:
        return divmod(member.offset + self.block_tokens - 1, self.block_tokens)

    def _blocks_of(self, member: _Member) -> int:
        return -((-member.offset - self.clock - self.ahead) // self.block_tokens)

    def _blocks_for(self, num_steps: int) -> int:
        """Return the private blocks of all sequences with just enough for so many steps more."""
        whole, rest = divmod(self.clock + num_steps, self.block_tokens)
        carries = len(self._rests) - bisect_left(self._rests, self.block_tokens - rest)
        return self._sum_whole + whole * len(self._rests) + carries
