"""How a profile was fitted: the classes behind the section ``calibration`` of its file, which --json prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.execution.measuring.storage import Storage
from scenarios.summaries.as_json import ABSENT, INLINE


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMachine:
    """The names that a machine gives itself: kind of device, processor, usable cores, memory with its unit."""

    device: str
    processor: str
    cores: int
    memory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRuns:
    """The number of all runs, and of those in which the machine was quiet."""

    all: int
    quiet: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDrive:
    """The rates of a drive; None where it had no room for a file."""

    storage: Storage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOrigin:
    """How a machine was measured. ``measured``: number of benchmarks, runs and seconds, in words.

    ``drive`` is None where no folder was named.
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
    """Measured tables; whose rows of tables of collectives count, and where the tables come from, if stated."""

    tables: tuple[str, ...]
    system: str | None = field(default=None, metadata=ABSENT)
    source: str | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyResiduals:
    """A family's errors, as fractions, of the rows that were fitted, and of the rows that were held out.

    ``p50``, ``p90``: half, and nine of ten errors are below. ``sigma``: the root mean square of
    log(measured/predicted). Figures are None where there are no rows.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """Fitted parameters without a standard error, by the reason."""

    at_limit: tuple[str, ...]
    not_settled: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty:
    """The relative standard errors of fitted parameters, and the parameters that have none."""

    standard_errors: Mapping[str, float]
    without_standard_error: Unsettled


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSummary:
    """How a profile was fitted: to which measurements, how well it predicts them, how sure its parameters are.

    ``held_out``: the rows that were kept from the fit, in words. ``residuals``: errors by family.
    """

    origin: MachineOrigin | TablesOrigin = field(metadata=INLINE)
    seed: int
    date: str
    versions: Mapping[str, str]
    fitted_sections: tuple[str, ...]
    held_out: str
    residuals: Mapping[str, FamilyResiduals]
    certainty: Certainty = field(metadata=INLINE)
