"""Options of methods that scenarios choose by name: those of tensor parallelism, and of shared sequences."""

from collections.abc import Iterable

from msgspec import Struct

from sim.training.errors import SpecError


def check_options(section: str, name: str, method: type[Struct], options: Iterable[str]) -> None:
    """Raise SpecError for an option, a key of ``section``, that the method of this name does not take.

    check_options("parallel.tensor", "1d", OneDimensional, ["sequence_parallel"])
    """
    for option in options:
        if option not in method.__struct_fields__:
            rule, remedy = f"method {name} has no such option", "leave it out, or write another method"
            raise SpecError(f"{section}.{option}", rule, remedy)
