"""Values of command line options that have units."""

from costmodels.errors import UnitError
from costmodels.units import Dimension, format_time, parse_quantity
from scenarios.errors import Origin, ScenarioError


def option_seconds(option: str, text: str, limits_s: tuple[float, float], words: str) -> float:
    """Return the seconds of an option, given as text with a unit.

        option_seconds("--budget", "1 min", (2.0, 3600.0), "measuring takes")  # 60.0

    ``words``: what stands before the limits in a message. Raises ScenarioError for a time without a unit, or out of its
    limits.
    """
    origin, (least_s, most_s) = Origin(option=f"{option} {text[:40]}"), limits_s
    try:
        seconds = parse_quantity(text, Dimension.TIME, "30 s")
    except UnitError as error:
        rule, _, remedy = str(error).rpartition("; ")
        raise ScenarioError(origin, "", rule, remedy) from error
    if not least_s <= seconds <= most_s:
        rule = f"{words} {format_time(least_s)} to {format_time(most_s)}"
        raise ScenarioError(origin, "", rule, "write a time between the two")
    return seconds
