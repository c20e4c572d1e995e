"""Reasons why a time may be off, stated wherever the time is compared."""


def simulated_note(profile_basis: str | None) -> str:
    """Return a caveat on simulated times: empty if the profile was fitted to measurements, or is unknown."""
    return "" if profile_basis in {None, "measured"} else "uncalibrated"


def executed_note(num_ranks: int, num_cores: int | None) -> str:
    """Return a caveat on executed times: more ranks than cores took turns on the cores."""
    return "" if num_cores is None or num_ranks <= num_cores else f"{num_ranks} ranks on {num_cores} cores"
