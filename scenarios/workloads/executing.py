"""The options of ``simulate execute``, and what an execution of any kind of work can do."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields

from backends.execution.silence import SILENCE_S
from scenarios.errors import Origin, ScenarioError
from scenarios.reading.option import option_seconds
from scenarios.report import blocks as report
from scenarios.summaries.as_json import as_json

Device = Literal["cpu", "cuda"]
NATIVE: Final = "native"
TIMEOUT: Final = f"{SILENCE_S:g} s"
TIMEOUTS_S: Final = (5.0, 86_400.0)
"""The longest silence of a rank: default and limits."""
STEPS: Final = (2, 1000)
REPEATS: Final = (1, 100)
"""The least and the most of an execution."""


class ExecutionOptions(Struct, frozen=True, kw_only=True):
    """How a scenario is run.

    ``timing``: fence and time every op, or only steps. ``collectives``: the library's own, or step lists over messages
    (see ``chosen_algorithms``), on nodes (or domains of nodes) of as many ranks as the scenario's have devices; the
    simulation that the run is compared with then takes the same algorithms. ``steps``: how many; the first warms up,
    the median of the others is timed. ``check``: compare with a dense autograd reference; on a CPU all numbers are
    float64 then, in the simulated plan too, so that errors show to the last digit. ``calibrate``: a time with its unit,
    for measurements of this machine, between which the run is repeated; the simulation is then of this machine.
    ``record_routing``: a file that gets the choices of experts of the last step. ``repeats``: of a job mix, the run
    with the median completion time is reported.
    """

    device: Device = "cpu"
    check: bool = False
    timing: Literal["op", "step"] = "op"
    collectives: str = NATIVE
    steps: Annotated[int, Meta(ge=STEPS[0], le=STEPS[1])] = 4
    timeout: str = TIMEOUT
    calibrate: str | None = None
    record_routing: Path | None = None
    repeats: Annotated[int, Meta(ge=REPEATS[0], le=REPEATS[1])] = 1


class Executed(ABC):
    """A run with torch, compared with its simulation. ``summary``: a frozen record of its answers, with ``passed``."""

    summary: Any

    @property
    def passed(self) -> bool:
        """Return whether everything that was compared is as it should be."""
        return bool(self.summary.passed)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as summary.json holds it."""
        found: dict[str, Any] = as_json(self.summary)
        return found

    @abstractmethod
    def blocks(self) -> "Sequence[report.Block]":
        """Return the report."""

    @abstractmethod
    def write(self, out: Path) -> None:
        """Write summary.json, and the page and timelines that there are, into a folder."""


def silence_s(options: ExecutionOptions) -> float:
    """Return for how long a rank may be silent. Raises ScenarioError for a time outside the limits."""
    return option_seconds("--timeout", options.timeout, TIMEOUTS_S, "a rank may be silent for")


def refuse_options(options: ExecutionOptions, kind: str, *, but: Sequence[str]) -> None:
    """Raise ScenarioError for an option that a kind of work does not know, or a time outside the limits.

    It knows those named in ``but``. Every execution asks before it does anything.
    """
    for field in fields(options):
        if field.name not in but and getattr(options, field.name) != field.default:
            name = "--" + field.name.replace("_", "-")
            raise ScenarioError(Origin(option=name), "", f"an execution of {kind} has no such choice", "leave it out")
    silence_s(options)
