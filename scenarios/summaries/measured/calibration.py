"""The fit of a profile: the classes behind the section ``calibration`` of its file, which --json prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOrigin:
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
    drive: MeasuredDrive | None = field(default=None, metadata=INLINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOrigin:
    """Measured tables; the system whose rows of collectives count, and the tables' source, if stated."""

    tables: tuple[str, ...]
    system: str | None = field(default=None, metadata=ABSENT)
    source: str | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyResiduals:
    """A family's errors, as fractions, on fitted and on held-out rows.

    ``p50``, ``p90``: half, and nine of ten errors are below.
    ``sigma``: the root mean square of log(measured/predicted). Figures are None without rows.
    """

    points: int
    mean: float | None = field(metadata=ABSENT)
    p50: float | None = field(metadata=ABSENT)
    p90: float | None = field(metadata=ABSENT)
    bias: float | None = field(metadata=ABSENT)
    sigma: float | None = field(metadata=ABSENT)
    held_out_points: int
    held_out_mean: float | None = field(metadata=ABSENT)
    held_out_p50: float | None = field(metadata=ABSENT)
    held_out_p90: float | None = field(metadata=ABSENT)
    held_out_bias: float | None = field(metadata=ABSENT)
    held_out_sigma: float | None = field(metadata=ABSENT)


class Unsettled(Struct, frozen=True, kw_only=True):
    """Fitted parameters without a standard error, by the reason."""

    at_limit: tuple[str, ...]
    not_settled: tuple[str, ...]


class Certainty(Struct, frozen=True, kw_only=True):
    """The relative standard errors of fitted parameters, and the parameters that have none."""

    standard_errors: Mapping[str, float]
    without_standard_error: Unsettled


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSummary:
    """The fit of a profile: its measurements, its errors, and the uncertainty of its parameters.

    ``held_out``: the rows that were kept from the fit, in words.
    ``residuals``: errors by family.
    """

    origin: MachineOrigin | TablesOrigin = field(metadata=INLINE)
    seed: int
    date: str
    versions: Mapping[str, str]
    fitted_sections: tuple[str, ...]
    held_out: str
    residuals: Mapping[str, FamilyResiduals]
    certainty: Certainty = field(metadata=INLINE)
