"""An optimizer in a thread of its own, whose state lies in a file of pages (Angel-PTM; Nie et al., VLDB 2023).

The training adds gradients and reads published parameters; locks are held only while a buffer is exchanged. For an
update the thread reads a unit's state, while another thread reads that of the next one, and a third writes that of the
last. State has two places in the file, which take turns: an update that fails leaves the one before it whole, and its
gradients go back into the buffer. So no gradient is lost or applied twice, whatever dies.
"""

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import NamedTuple

import torch
from msgspec import Struct
from torch import Tensor

from backends.execution.errors import ExecutionError
from backends.torch.tiers.page_file import PageFile
from sim.memory.lock_free import Account

STATE = ("master", "first", "second")
"""The parts of a unit's state."""


class UpdateError(ExecutionError):
    """The optimizer's thread has ended early, at a unit that the message names. Gradients that it had are kept."""


class AdamNumbers(Struct, frozen=True, kw_only=True):
    """The constants of Adam."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float

    def updated(self, state: list[Tensor], gradient: Tensor, step: int) -> list[Tensor]:
        """Return master weights and both moments after an update, counted from 1."""
        master, first, second = state
        first = self.beta1 * first + (1 - self.beta1) * gradient
        second = self.beta2 * second + (1 - self.beta2) * gradient**2
        by = (second / (1 - self.beta2**step)).sqrt() + self.epsilon
        return [master - self.learning_rate * (first / (1 - self.beta1**step)) / by, first, second]


class Ready(NamedTuple):
    """Published parameters, the number of updates of each, and the most gradients that any of them lacks."""

    parameters: Mapping[str, Tensor]
    versions: Mapping[str, int]
    staleness: int


class Update(NamedTuple):
    """An update that was published: of a unit, with the gradients of so many iterations."""

    unit: str
    num_gradients: int


class _Taken(NamedTuple):
    """The sum of so many gradients, which an update applies."""

    gradient: Tensor
    num_gradients: int


def state_sizes(initial: Mapping[str, Tensor]) -> dict[Hashable, int]:
    """Return the elements of each tensor of the file: by unit, part of its state, and which of its two places."""
    return {(unit, part, place): x.numel() for unit, x in initial.items() for part in STATE for place in range(2)}


@dataclass(slots=True)
class LockFreeOptimizer:
    """Applies the sums of gradients that a training has added, unit after unit, until it is closed.

        with LockFreeOptimizer(initial, rule, file, max_staleness=3) as optimizer:
            ready = optimizer.wait(iteration)               # published parameters, at most so many gradients behind
            optimizer.add("layer0", gradient)

    ``initial``: by unit, flat float64 parameters. ``rule``: state and a gradient to the new state, by update's number.
    ``on_update``: is called before a unit's update, in the thread. Leaving the block waits for all updates.
    """

    initial: Mapping[str, Tensor]
    rule: Callable[[list[Tensor], Tensor, int], list[Tensor]]
    file: PageFile
    max_staleness: int | None = None
    on_update: Callable[[str], None] = lambda _: None
    updates: list[Update] = field(init=False, default_factory=list)
    account: Account = field(init=False)
    _published: dict[str, Tensor] = field(init=False)
    _gradients: dict[str, Tensor] = field(init=False)
    _turns: dict[str, int] = field(init=False)
    _changed: Condition = field(init=False, default_factory=Condition)
    _error: BaseException | None = field(init=False, default=None)
    _failed_at: str = field(init=False, default="")
    _closing: bool = field(init=False, default=False)
    _thread: Thread | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.account = Account(tuple(self.initial), self.max_staleness)
        self._published = dict(self.initial)
        self._gradients = {unit: torch.zeros_like(x) for unit, x in self.initial.items()}
        self._turns = dict.fromkeys(self.initial, 0)
        for unit, x in self.initial.items():
            for part in STATE:
                self.file.write((unit, part, 0), x if part == "master" else torch.zeros_like(x))

    def __enter__(self) -> "LockFreeOptimizer":
        self.resume()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.settle()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def resume(self) -> None:
        """Start the thread, or another in place of one that has ended early; what that had taken is applied anew."""
        self._error, self._closing = None, False
        self._thread = Thread(target=self._run, name="lock-free optimizer", daemon=True)
        self._thread.start()

    # --- the training ----------------------------------------------------------------------------------------------

    def add(self, unit: str, gradient: Tensor) -> None:
        """Add a gradient to what the next update of a unit applies."""
        with self._changed:
            self._gradients[unit] = self._gradients[unit] + gradient
            self.account.made(unit)
            self._changed.notify_all()

    def wait(self, iteration: int) -> Ready:
        """Return the published parameters, once an iteration, counted from 0, may begin. Raises UpdateError."""
        return self._wait_for(lambda: self.account.may_begin(iteration))

    def settle(self) -> Ready:
        """Return the published parameters, once all gradients are applied. Raises UpdateError."""
        return self._wait_for(lambda: self.account.is_settled)

    def _wait_for(self, condition: Callable[[], bool]) -> Ready:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or condition())
            if self._error is not None:
                message = f"the optimizer's thread ended at {self._failed_at}: {self._error}"
                raise UpdateError(message) from self._error
            lacking = max(made - self.account.num_applied[unit] for unit, made in self.account.num_made.items())
            return Ready(dict(self._published), dict(self._turns), lacking)

    def pending(self, unit: str) -> Tensor:
        """Return the sum of a unit's gradients that no update has applied."""
        with self._changed:
            return self._gradients[unit]

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with ThreadPoolExecutor(1, "page reader") as reader, ThreadPoolExecutor(1, "page writer") as writer:
            writing = dict[str, Future[None]]()
            reading = dict[str, Future[list[Tensor]]]()
            unit = ""
            try:
                while unit := self._next():
                    state = reading.pop(unit, None) or reader.submit(self._read, unit, writing.get(unit))
                    state.result()
                    taken = self._take(unit)
                    ahead = self._foreseen()
                    if ahead not in {"", unit, *reading}:
                        reading[ahead] = reader.submit(self._read, ahead, writing.get(ahead))
                    writing[unit] = writer.submit(self._commit, unit, self._updated(unit, state.result(), taken), taken)
            except BaseException as error:
                self._fail(unit, error)

    def _next(self) -> str:
        """Return the next unit that has gradients, once there is one; "": the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._error is not None or self.account.next_unit())
            return "" if self._closing or self._error is not None else self.account.next_unit()

    def _foreseen(self) -> str:
        with self._changed:
            return self.account.next_unit()

    def _read(self, unit: str, written: Future[None] | None) -> list[Tensor]:
        """Return the state of a unit, after its last update has been written."""
        if written is not None:
            written.result()
        place = self._turns[unit] % 2
        return [self.file.read((unit, part, place)) for part in STATE]

    def _take(self, unit: str) -> _Taken:
        """Return the gradients of a unit that are there, and leave zeros."""
        with self._changed:
            taken = _Taken(self._gradients[unit], self.account.take(unit))
            self._gradients[unit] = torch.zeros_like(taken.gradient)
            return taken

    def _give_back(self, unit: str, taken: _Taken) -> None:
        with self._changed:
            self._gradients[unit] = taken.gradient + self._gradients[unit]
            self.account.give_back(unit, taken.num_gradients)

    def _updated(self, unit: str, state: list[Tensor], taken: _Taken) -> list[Tensor]:
        """Return a unit's new state; if it fails, its gradients are back in the buffer."""
        try:
            self.on_update(unit)
            return self.rule(state, taken.gradient, self._turns[unit] + 1)
        except BaseException:
            self._give_back(unit, taken)
            raise

    def _commit(self, unit: str, state: list[Tensor], taken: _Taken) -> None:
        """Write a unit's new state beside the old one, and publish it; if it fails, its gradients are back."""
        try:
            for part, values in zip(STATE, state, strict=True):
                self.file.write((unit, part, (self._turns[unit] + 1) % 2), values)
        except BaseException as error:
            self._give_back(unit, taken)
            self._fail(unit, error)
            raise
        with self._changed:
            self._turns[unit] += 1
            self._published[unit] = state[0]
            self.account.applied(unit, taken.num_gradients)
            self.updates.append(Update(unit, taken.num_gradients))
            self._changed.notify_all()

    def _fail(self, unit: str, error: BaseException) -> None:
        """Note the first error, which the training gets."""
        with self._changed:
            if self._error is None:
                self._error, self._failed_at = error, unit
            self._changed.notify_all()
