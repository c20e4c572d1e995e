"""Reasons why a time may be off, stated wherever the time is compared."""

from typing import Final

from costmodels.units import format_time

_NOTABLE: Final = 0.01
"""Least difference of the drawn runs' median from the step without draws, as a part of it, that is stated."""


def simulated_note(profile_basis: str | None) -> str:
    """Return a caveat on simulated times: empty if the profile was fitted to measurements, or is unknown."""
    return "" if profile_basis in {None, "measured"} else "uncalibrated"


def is_notable(time_s: float, median_s: float | None) -> bool:
    """Return whether the median of drawn runs is another time than that of the run without draws."""
    return median_s is not None and abs(median_s - time_s) > _NOTABLE * time_s


def drawn_note(time_s: float, median_s: float | None) -> str:
    """Return the median of drawn runs beside a step without draws: empty if it is not known, or no other time."""
    if median_s is None or not is_notable(time_s, median_s):
        return ""
    return f"median of drawn runs {format_time(median_s)}"


def executed_note(num_ranks: int, num_cores: int | None) -> str:
    """Return a caveat on executed times: more ranks than cores took turns on the cores."""
    return "" if num_cores is None or num_ranks <= num_cores else f"{num_ranks} ranks on {num_cores} cores"
