"""The repetition in a program: calls in its middle that recur, each time for later micro-batches.

A program with fewer recurrences is the program of a step with fewer micro-batches. A backend's findings about the short
program hold for the long one as far as the recurrences are equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, takewhile
from operator import itemgetter
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.integers import Integers, Ints, integer_type, widened
from sim.plan.words.calls import NO_MICROBATCH, Calls, CallsKey
from sim.plan.words.program import Program
from sim.sorting import distinct_values, first_places, run_begins, sorted_order

MOST_CALLS: Final = 4096
"""Most calls of a repetition: calls that recur less often are no steady state."""


class Repetition(Struct, frozen=True):
    """Calls ``first`` to ``stop`` are the same ``num_calls`` calls, over and over; the last time may be cut short.

    Each time the calls are for micro-batches ``microbatches`` later.
    """

    first: int
    stop: int
    num_calls: int
    microbatches: int

    @property
    def num_times(self) -> int:
        """Return the number of complete recurrences."""
        return (self.stop - self.first) // self.num_calls

    def without(self, times: int) -> "Repetition":
        """Return the repetition of a program with so many recurrences less."""
        return replace(self, stop=self.stop - times * self.num_calls)

    def of_task(self, program: Program) -> Mapping[str, int]:
        """Return the number of calls of each task in one recurrence."""
        calls, found = Calls.of(program.calls), dict[str, int]()
        for number in calls.tasks[self.first : self.first + self.num_calls].tolist():
            found[calls.names[number]] = found.get(calls.names[number], 0) + 1
        return found


def repetitions(coded: "Sequence[CodedCalls]") -> list[Repetition] | None:
    """Return the repetition of every program, all by the same number of micro-batches; None if there is none.

    Of several repetitions it is the one of the fewest micro-batches. Where calls recur, they also do so after several
    recurrences, in the same stretch: that need not be tried.
    """
    tried = list[tuple[int, int]]()
    for num_calls, microbatches in coded[0].candidates() if coded else ():
        if any(num_calls * by == calls * microbatches and microbatches % by == 0 for calls, by in tried):
            continue
        tried.append((num_calls, microbatches))
        every = (calls.repetition(microbatches) for calls in coded)
        found = [repetition for repetition in takewhile(lambda one: one is not None, every) if repetition is not None]
        if len(found) == len(coded):
            return found
    return None


def shortened(program: Program, repetition: Repetition, times: int) -> Program | None:
    """Return a program with so many recurrences less; None if the result is no program.

    Later calls move to the micro-batches that many recurrences earlier.
    """
    calls, by = Calls.of(program.calls), times * repetition.microbatches
    before = calls[: repetition.first]
    after = calls[repetition.first + times * repetition.num_calls :]
    if ((after.microbatches != NO_MICROBATCH) & (after.microbatches < by)).any():
        return None
    short = Calls.joined(before, after.later(-by))
    return program.calling(short) if short.are_different else None


class KnownCalls(Struct, frozen=True):
    """The coded calls of programs, made once for all that share tasks and have equal calls. Tasks must live as long."""

    _coded: "dict[tuple[int, CallsKey], CodedCalls]" = {}

    def of(self, program: Program) -> "CodedCalls":
        """Return the coded calls of a program."""
        key = id(program.tasks), Calls.of(program.calls).key
        if key not in self._coded:
            self._coded[key] = CodedCalls.of(program)
        return self._coded[key]


class CodedCalls(Struct, frozen=True, dict=True, eq=False):
    """The calls of a program as numbers: task, micro-batch and lag."""

    tasks: Integers
    microbatches: Integers
    lags: Integers

    @classmethod
    def of(cls, program: Program) -> "CodedCalls":
        """Return the calls of a program."""
        calls = Calls.of(program.calls)
        return cls(calls.numbered(program.tasks), calls.microbatches, calls.lags)

    @cached_property
    def middle(self) -> int:
        """Return the call whose recurrence is sought; -1: no call has a micro-batch."""
        numbered = np.flatnonzero(self.microbatches != NO_MICROBATCH)
        return int(numbered[len(numbered) // 2]) if len(numbered) else -1

    def by_sequence(self) -> Iterator[Integers]:
        """Yield the calls of micro-batches that go through the same sequence of tasks (micro-batches x calls).

        Calls are in order; those of no micro-batch are together, too.
        """
        if (found := self._of_one_sequence()) is not None:
            yield from found
            return
        order = sorted_order(widened(self.microbatches) - NO_MICROBATCH)
        begins = np.flatnonzero(run_begins(self.microbatches[order]))
        counts = np.diff(begins, append=len(order))
        for count in distinct_values(counts).tolist():
            calls = order[begins[counts == count][:, None] + np.arange(count)]
            of_calls = self.tasks[calls]
            if (of_calls == of_calls[0]).all():  # as in most programs
                yield calls
                continue
            tasks = of_calls.tobytes()
            width, numbers = len(tasks) // len(calls), dict[bytes, int]()
            sequence_of = [numbers.setdefault(tasks[at : at + width], at) for at in range(0, len(tasks), width)]
            for number in numbers.values():
                yield calls[np.array(sequence_of) == number]

    def _of_one_sequence(self) -> list[Integers] | None:
        """Return the same where all micro-batches go through one sequence, each task in their order; None: they do not.

        No task is in the sequence twice.
        """
        in_step = self.microbatches == NO_MICROBATCH
        others, called = np.flatnonzero(in_step), [calls for calls in self.of_tasks if len(calls)]
        called = sorted((calls for calls in called if not in_step[calls[0]]), key=itemgetter(0))
        if len(set(map(len, called))) != 1:
            return None
        places = np.concatenate(called).reshape(len(called), -1)
        microbatches = self.microbatches.take(places)
        if len(others) + places.size != len(self.tasks) or (microbatches != microbatches[0]).any():
            return None
        if (microbatches[0, 1:] <= microbatches[0, :-1]).any() or (places[1:] < places[:-1]).any():
            return None
        if np.array_equal(self.tasks[others], self.tasks[places[:, 0]]):
            return None
        return [*([others[None]] if len(others) else []), places.T]

    @cached_property
    def of_tasks(self) -> list[Integers]:
        """Return the calls of each task, in order."""
        order = sorted_order(self.tasks).astype(integer_type(len(self.tasks)))
        stops = np.cumsum(np.bincount(self.tasks)).tolist()
        return [order[begin:stop] for begin, stop in pairwise([0, *stops])]

    def first_of_tasks(self, calls: Integers) -> list[int]:
        """Return, of calls in order, the first of each task, in order."""
        places = first_places(self.tasks[calls], self._num_tasks)
        found: list[int] = calls[np.sort(places[places < len(calls)])].tolist()
        return found

    @property
    def ends_of_tasks(self) -> list[int]:
        """Return the first and the last call of each task, in order."""
        return sorted({int(calls[end]) for calls in self.of_tasks if len(calls) for end in (0, -1)})

    @cached_property
    def _num_tasks(self) -> int:
        return int(self.tasks.max(initial=-1)) + 1

    @property
    def every(self) -> Ints:
        """Return all calls."""
        return np.arange(len(self.tasks))

    @cached_property
    def sequences(self) -> list[Integers]:
        """Return the calls of one micro-batch of each sequence of tasks that micro-batches go through."""
        return [calls[0].copy() for calls in self.by_sequence()]  # a part alone would keep all of them

    @cached_property
    def outline(self) -> tuple[object, ...]:
        """Return what is equal for programs that call equal tasks in the same order, however often.

        These are the tasks of every sequence that micro-batches go through, the first and the last call of each task in
        the program, and the tasks whose calls complete an earlier step.
        """
        return (
            frozenset(self.tasks[calls].tobytes() for calls in self.sequences),
            self.tasks[self.ends_of_tasks].tobytes(), frozenset(self.tasks[self.lags > 0].tolist()),
        )  # fmt: skip

    def candidates(self) -> list[tuple[int, int]]:
        """Return after how many calls and micro-batches the middle call recurs, the fewest micro-batches first."""
        if self.middle < 0:
            return []
        later = slice(self.middle + 1, self.middle + 1 + MOST_CALLS)
        again = np.flatnonzero(self.tasks[later] == self.tasks[self.middle])
        ahead = widened(self.microbatches[later][again]) - self.microbatches[self.middle]
        return sorted(zip((again[ahead > 0] + 1).tolist(), ahead[ahead > 0].tolist(), strict=True), key=itemgetter(1))

    def distances(self) -> list[int]:
        """Return by how many micro-batches, more or fewer, the middle call recurs, the fewest first."""
        if self.middle < 0:
            return []
        later = slice(self.middle + 1, self.middle + 1 + MOST_CALLS)
        again = self.tasks[later] == self.tasks[self.middle]
        ahead = widened(self.microbatches[later][again]) - self.microbatches[self.middle]
        return sorted(set(np.abs(ahead).tolist()) - {0})

    def repetition(self, microbatches: int) -> Repetition | None:
        """Return the repetition around the middle call: at least twice, and most calls that have a micro-batch."""
        if self.middle < 0:
            return None
        wanted = (self.tasks == self.tasks[self.middle]) & (
            self.microbatches == int(self.microbatches[self.middle]) + microbatches
        )
        at = np.flatnonzero(wanted)
        num_calls = int(at[0]) - self.middle if len(at) == 1 else 0
        if num_calls < 1:
            return None
        recurring = self.recurring(num_calls, microbatches)
        ending = np.flatnonzero(~recurring)
        place = int(np.searchsorted(ending, self.middle))
        first = int(ending[place - 1]) + 1 if place else 0
        stop = (int(ending[place]) if place < len(ending) else len(recurring)) + num_calls
        found = Repetition(first, stop, num_calls, microbatches)
        numbered = self.microbatches != NO_MICROBATCH
        is_most = 2 * np.count_nonzero(numbered[first:stop]) > np.count_nonzero(numbered)
        return found if recurring[self.middle] and found.num_times > 1 and is_most else None

    def num_times(self, repetition: Repetition) -> int:
        """Return how often as many calls are made of the middle call's task as one recurrence has, in all."""
        every = self.tasks == self.tasks[self.middle]
        once = slice(repetition.first, repetition.first + repetition.num_calls)
        return int(np.count_nonzero(every) // np.count_nonzero(every[once]))

    def recurring(self, num_calls: int, microbatches: int) -> NDArray[np.bool_]:
        """Return which calls recur ``num_calls`` later, for later micro-batches."""
        tasks, now = self.tasks, self.microbatches
        later = np.where(now == NO_MICROBATCH, NO_MICROBATCH, widened(now) + microbatches)
        same: NDArray[np.bool_] = (tasks[num_calls:] == tasks[:-num_calls]) & (now[num_calls:] == later[:-num_calls])
        return same
