"""The fit of a profile: the classes behind the section ``calibration`` of its file, which --json prints."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from backends.execution.measuring.storage import Storage
from scenarios.summaries.as_json import ABSENT, INLINE


class MeasuredMachine(Struct, frozen=True, kw_only=True):
    """A machine's description of itself: kind of device, processor, usable cores, memory with its unit."""

    device: str
    processor: str
    cores: int
    memory: str


class CountedRuns(Struct, frozen=True, kw_only=True):
    """The number of all runs, and of those in which the machine was quiet."""

    all: int
    quiet: int


class MeasuredDrive(Struct, frozen=True, kw_only=True):
    """The rates of a drive; None if it had no room for a file."""

    storage: Storage | None


class MachineOrigin(Struct, frozen=True, kw_only=True):
    """The way a machine was measured.

    ``measured``: number of benchmarks, runs and seconds, in words.
    ``drive``: None if no folder was named.
    """

    measured: str
    runs: CountedRuns
    processes: int
    machine: MeasuredMachine
    host_copy_bytes_per_s: Mapping[str, float]
    handoff_us: float
    drive: Annotated[MeasuredDrive | None, INLINE] = None


class TablesOrigin(Struct, frozen=True, kw_only=True):
    """Measured tables; the system whose rows of collectives count, and the tables' source, if stated."""

    tables: tuple[str, ...]
    system: Annotated[str | None, ABSENT] = None
    source: Annotated[str | None, ABSENT] = None


class FamilyResiduals(Struct, frozen=True, kw_only=True):
    """A family's errors, as fractions, on fitted and on held-out rows.

    ``p50``, ``p90``: half, and nine of ten errors are below.
    ``sigma``: the root mean square of log(measured/predicted). Figures are None without rows.
    """

    points: int
    mean: Annotated[float | None, ABSENT]
    p50: Annotated[float | None, ABSENT]
    p90: Annotated[float | None, ABSENT]
    bias: Annotated[float | None, ABSENT]
    sigma: Annotated[float | None, ABSENT]
    held_out_points: int
    held_out_mean: Annotated[float | None, ABSENT]
    held_out_p50: Annotated[float | None, ABSENT]
    held_out_p90: Annotated[float | None, ABSENT]
    held_out_bias: Annotated[float | None, ABSENT]
    held_out_sigma: Annotated[float | None, ABSENT]


class Unsettled(Struct, frozen=True, kw_only=True):
    """Fitted parameters without a standard error, by the reason."""

    at_limit: tuple[str, ...]
    not_settled: tuple[str, ...]


class Certainty(Struct, frozen=True, kw_only=True):
    """The relative standard errors of fitted parameters, and the parameters that have none."""

    standard_errors: Mapping[str, float]
    without_standard_error: Unsettled


class CalibrationSummary(Struct, frozen=True, kw_only=True):
    """The fit of a profile: its measurements, its errors, and the uncertainty of its parameters.

    ``held_out``: the rows that were kept from the fit, in words.
    ``residuals``: errors by family.
    """

    origin: Annotated[MachineOrigin | TablesOrigin, INLINE]
    seed: int
    date: str
    versions: Mapping[str, str]
    fitted_sections: tuple[str, ...]
    held_out: str
    residuals: Mapping[str, FamilyResiduals]
    certainty: Annotated[Certainty, INLINE]
