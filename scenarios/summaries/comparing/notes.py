"""Why a time may be off: what stands beside it wherever it is compared."""


def simulated_note(profile_basis: str | None) -> str:
    """Return what to know of simulated times: nothing where the profile was fitted to measurements, or is not known."""
    return "" if profile_basis in {None, "measured"} else "uncalibrated"


def executed_note(num_ranks: int, num_cores: int | None) -> str:
    """Return what to know of executed times: that more ranks than cores took turns on them."""
    return "" if num_cores is None or num_ranks <= num_cores else f"{num_ranks} ranks on {num_cores} cores"
