"""Which ops a rank runs, call by call, and which of them repeat: the same for all ranks with its tasks and calls."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.running.plan_facts import counted_stream
from sim.plan.words.program import Task

NO_PERIOD: Final = -1

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class OpLayout(Struct, dict=True, eq=False):
    """The ops of a rank: one task after the other, of a task one call after the other.

    ``calls_of``: those of each of the tasks; ``repeated``: from call to call, the period of each section, which the
    whole step has ``times`` more. ``shown``: the calls of the step that is shown, of several in a row.
    """

    tasks: Sequence[Task]
    calls_of: Sequence[Ints]
    repeated: Sequence[tuple[int, int]]
    times: int
    shown: range
    _a_step_apart: dict[int, tuple[Ints, Ints]] = {}
    _around_period: dict[int, tuple[Flags, Flags]] = {}

    @cached_property
    def _sizes(self) -> Ints:
        """Return how many ops each task has."""
        return np.array([len(task.ops) for task in self.tasks], np.int64)

    @cached_property
    def num_ops(self) -> Ints:
        """Return, by the number of an op among those of all tasks, how many its task has."""
        return np.repeat(self._sizes, self._sizes)

    @cached_property
    def calls(self) -> Ints:
        """Return the call of each op."""
        return np.concatenate([np.repeat(calls, len(task.ops)) for calls, task in self._by_task])

    @cached_property
    def numbers(self) -> Ints:
        """Return which of all tasks' ops each is."""
        firsts = (np.cumsum(self._sizes) - self._sizes).tolist()
        rows = zip(firsts, self._by_task, strict=True)
        return np.concatenate(
            [np.tile(np.arange(first, first + len(task.ops)), len(calls)) for first, (calls, task) in rows]
        )

    @property
    def _by_task(self) -> list[tuple[Ints, Task]]:
        return list(zip(self.calls_of, self.tasks, strict=True))

    @cached_property
    def apart(self) -> Mapping[str, Ints]:
        """Return, by task, how many of its calls before each is the one a period earlier; 0: it is of no period."""
        found = {}
        for calls, task in self._by_task:
            found[task.name] = np.zeros(len(calls), np.int64)
            for first, stop in calls.searchsorted(self.repeated).tolist():
                found[task.name][first:stop] = stop - first
        return found

    @cached_property
    def streams(self) -> Sequence[str]:
        """Return, by number, the stream that an op counts for."""
        return [counted_stream(op) for task in self.tasks for op in task.ops]

    @cached_property
    def of_streams(self) -> Mapping[str, Ints]:
        """Return the places of the ops that count for each stream."""
        number_of = {name: number for number, name in enumerate(dict.fromkeys(self.streams))}
        streams = np.array([number_of[name] for name in self.streams], np.int64)[self.numbers]
        return {name: np.flatnonzero(streams == number) for name, number in number_of.items()}

    # --- what ops stand for --------------------------------------------------------------------------------

    @cached_property
    def period_of(self) -> Ints:
        """Return the section to whose period each op belongs; NO_PERIOD: to none."""
        of_call = np.full(int(self.calls.max(initial=-1)) + 1, NO_PERIOD)
        for section, (first, stop) in enumerate(self.repeated):
            of_call[first:stop] = section
        found: Ints = of_call[self.calls]
        return found

    @cached_property
    def counts(self) -> Ints:
        """Return how many ops of the whole step each op stands for."""
        return np.where(self.period_of == NO_PERIOD, 1, 1 + self.times)

    @cached_property
    def repeated_ops(self) -> tuple[Ints, Ints]:
        """Return the places of the ops that repeat, and of those a period before them."""
        places = np.flatnonzero(self.period_of != NO_PERIOD)
        keys = self.numbers[places] * len(self.repeated) + self.period_of[places]
        in_a_period = np.bincount(keys, minlength=1)[keys]
        return places, places - in_a_period * self.num_ops[self.numbers[places]]

    @cached_property
    def repeated_main_ops(self) -> tuple[Ints, Ints, Ints]:
        """Return the same of those on the compute stream, after their sections."""
        places, before = self.repeated_ops
        kept = self._is_main[self.numbers[places]]
        return self.period_of[places[kept]], places[kept], before[kept]

    @cached_property
    def computing(self) -> tuple[Ints, Ints]:
        """Return the places of the ops that count for the compute stream, in its order: of calls before the shown step.

        And those of later calls.
        """
        places = self.of_streams.get(MAIN_STREAM, np.zeros(0, np.int64))
        in_order = places[np.argsort(self.calls[places], kind="stable")]
        first = int(np.searchsorted(self.calls[in_order], self.shown.start))
        return in_order[:first], in_order[first:]

    @cached_property
    def beside_main(self) -> Ints:
        """Return the places of the ops on other streams than the compute stream."""
        return np.flatnonzero(~self._is_main[self.numbers])

    @cached_property
    def _is_main(self) -> Flags:
        """Return, by number, which ops are on the compute stream."""
        return np.array([op.stream == MAIN_STREAM for task in self.tasks for op in task.ops], np.bool_)

    @cached_property
    def sections_over(self) -> Ints:
        """Return how many sections have passed through their periods before the call of each op."""
        return np.searchsorted([stop for _, stop in self.repeated], self.calls, side="right")

    def around_period(self, section: int) -> tuple[Flags, Flags]:
        """Return which ops beside the main stream are of calls before a section's last periods, three, or after."""
        if section not in self._around_period:
            (first, stop), calls = self.repeated[section], self.calls[self.beside_main]
            self._around_period[section] = calls < first - 2 * (stop - first), calls >= stop
        return self._around_period[section]

    @cached_property
    def in_periods(self) -> Sequence[Ints]:
        """Return, by section and number, how often an op beside the main stream is in its period."""
        places, periods = self.beside_main, self.period_of[self.beside_main]
        return [self.often(places[periods == section]) for section in range(len(self.repeated))]

    def a_step_apart(self, stop: int) -> tuple[Ints, Ints]:
        """Return the places of the ops of calls before one, and of the same ones a step later."""
        if stop not in self._a_step_apart:
            in_a_step = self.often(np.flatnonzero(self.calls < len(self.shown))) * self.num_ops
            early = np.flatnonzero(self.calls < stop)
            self._a_step_apart[stop] = early, early + in_a_step[self.numbers[early]]
        return self._a_step_apart[stop]

    def often(self, places: Ints) -> Ints:
        """Return, by number, how often an op is among those at some places."""
        return np.bincount(self.numbers[places], minlength=len(self.num_ops))
