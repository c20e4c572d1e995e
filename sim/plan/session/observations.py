"""Sources of a simulated session's observations: a seeded generator, or a recording."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from sim.plan.errors import RecordingError, SessionError
from sim.plan.session import residents
from sim.plan.session.protocol import Array, Observed, Seen
from sim.plan.words.program import Plan

SCHEMA: Final = "meshtwin.recording/1"
MOST_FILE_BYTES: Final = 1 << 26
"""Size limit of a recording."""


class Observations(Protocol):
    """A source of observations for simulated steps."""

    def seen(self, index: int, plan: Plan, duration_s: float) -> Seen:
        """Return the observations of plan number ``index`` of the session, which took ``duration_s`` seconds."""
        ...


class Draw(Protocol):
    """A function that draws the values of an observed buffer."""

    def __call__(self, generator: "np.random.Generator", name: str, rank: int, shape: tuple[int, ...], /) -> Array:
        """Return values of this shape. The generator is the same on all ranks, and different in every step."""
        ...


def shapes_by_name(plan: Plan) -> dict[str, dict[int, tuple[int, ...]]]:
    """Return the shapes of all observed buffers of a plan, by buffer and by rank of the session."""
    found: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name in sorted(plan.observed)}
    for rank, here in enumerate(plan.session_ranks) if plan.observed else ():
        for name, shape in residents.observed_shapes(plan, rank).items():
            found[name][here] = shape
    return found


class NoObservations:
    """Observes durations alone. A plan with observed buffers is refused."""

    def seen(self, index: int, plan: Plan, duration_s: float) -> Seen:
        """Return the duration. Raises SessionError if the plan has observed buffers."""
        del index
        if plan.observed:
            asked = f"plan {plan.name!r} asks to see {', '.join(sorted(plan.observed))}"
            raise SessionError(
                f"{asked}; a simulation knows no values: give the session observations to draw or replay"
            )
        return Seen(duration_s)


class SeededObservations(Struct, frozen=True):
    """Draws of observed values. The same seed, step, buffer and rank give the same values.

    SeededObservations(7, lambda generator, name, rank, shape: generator.uniform(size=shape))
    """

    seed: int
    draw: Draw

    def seen(self, index: int, plan: Plan, duration_s: float) -> Seen:
        """Return drawn values of the plan's observed buffers. Raises SessionError for values of another shape."""
        observed: dict[str, dict[int, Array]] = {}
        for name, ranks in shapes_by_name(plan).items():
            observed[name] = {}
            for rank, shape in ranks.items():
                generator = np.random.default_rng([self.seed, index, *name.encode()])
                values = np.asarray(self.draw(generator, name, rank, shape), dtype=np.float64)
                if values.shape != shape:
                    raise SessionError(
                        f"values of shape {values.shape} were drawn for {name!r}, which has shape {shape}"
                    )
                observed[name][rank] = values
        return Seen(duration_s, observed)


class RecordedStep(Struct, frozen=True):
    """The observations of one step, and the name of its plan."""

    plan: str
    seen: Seen


class Recording(Struct, frozen=True):
    """The observations of a session, step by step: written to a file, and replayed in a simulated session.

    recording_of([turn.plan for turn in turns], [turn.result.seen for turn in turns]).write(path)
    """

    steps: tuple[RecordedStep, ...]

    def seen(self, index: int, plan: Plan, duration_s: float) -> Seen:
        """Return the recorded observations of a step. Raises RecordingError for another plan, and past the end."""
        del duration_s
        if index >= len(self.steps):
            raise RecordingError(f"the recording has {len(self.steps)} steps, and plan {plan.name!r} is one more")
        step = self.steps[index]
        if step.plan != plan.name:
            raise RecordingError(f"step {index} was recorded of plan {step.plan!r}, and is now plan {plan.name!r}")
        expected, found = shapes_by_name(plan), _shapes(step.seen.observed)
        if expected != found:
            name = next(name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name))
            raise RecordingError(
                f"step {index}, plan {plan.name!r}: the shapes of {name!r} by rank are {expected.get(name, {})}, "
                f"and were recorded as {found.get(name, {})}"
            )
        return step.seen

    def write(self, path: Path) -> None:
        """Write a file for ``read_recording``; a failure leaves no partial file."""
        document = _Document(SCHEMA, [_written(step) for step in self.steps])
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def recording_of(plans: Iterable[Plan], seen: Iterable[Seen]) -> Recording:
    """Return the recording of some plans and their observations."""
    return Recording(tuple(RecordedStep(plan.name, sight) for plan, sight in zip(plans, seen, strict=True)))


def read_recording(path: Path) -> Recording:
    """Return the recording in a file. Raises RecordingError, with file and rule, if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}; name a file that a session has recorded") from error
    if len(content) > MOST_FILE_BYTES:
        raise RecordingError(f"{path}: a recording has {MOST_FILE_BYTES:,} bytes at most; record fewer steps")
    try:
        document = msgspec.json.decode(content, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(f"{path}: this is no recording: {error}; record it again") from error
    if document.schema != SCHEMA:
        raise RecordingError(f"{path}: its schema is {document.schema[:80]!r}, expected {SCHEMA!r}; record it again")
    try:
        return Recording(tuple(_read(step) for step in document.steps))
    except (ValueError, OverflowError) as error:
        raise RecordingError(f"{path}: {error}; record it again") from error


# --- the file ----------------------------------------------------------------------------------------------


class _Values(msgspec.Struct, forbid_unknown_fields=True):
    """An array as its elements in row-major order; numbers that are not finite are written in words."""

    shape: tuple[int, ...]
    values: list[float | str]


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    plan: str
    duration_s: float
    observed: dict[str, dict[int, _Values]]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    steps: list[_Step]


def _written(step: RecordedStep) -> _Step:
    observed = {
        name: {
            rank: _Values(values.shape, [_number(x) for x in values.ravel().tolist()]) for rank, values in by.items()
        }
        for name, by in step.seen.observed.items()
    }
    return _Step(step.plan, step.seen.duration_s, observed)


def _number(x: float) -> float | str:
    return x if math.isfinite(x) else str(x)


def _read(step: _Step) -> RecordedStep:
    observed: dict[str, Mapping[int, Array]] = {
        name: {rank: _array(name, values) for rank, values in by.items()} for name, by in step.observed.items()
    }
    return RecordedStep(step.plan, Seen(step.duration_s, observed))


def _array(name: str, values: _Values) -> Array:
    if min(values.shape, default=0) < 0 or math.prod(values.shape) != len(values.values):
        raise ValueError(f"{name!r} has {len(values.values)} values for shape {values.shape}"[:200])
    return np.array([float(x) for x in values.values], dtype=np.float64).reshape(values.shape)


def _shapes(observed: Observed) -> dict[str, dict[int, tuple[int, ...]]]:
    return {name: {rank: values.shape for rank, values in by.items()} for name, by in observed.items()}
