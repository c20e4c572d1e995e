"""Token slices that a scenario states."""

from collections.abc import Sequence

from sim.training.errors import SpecError
from sim.training.pipeline.rules import SLICES_KEY


def stated_slices(value: int | Sequence[int], num_tokens: int, multiple: int = 1) -> tuple[int, ...]:
    """Return the lengths of slices: those stated, or of a number of slices of ``num_tokens`` tokens.

    Where they do not come out even in multiples of ``multiple`` tokens, the first ones are longer.
    Raises SpecError where there are more slices than multiples.
    """
    if not isinstance(value, int):
        return tuple(value)
    units = num_tokens // multiple
    if value > units or num_tokens % multiple:
        rule = f"{num_tokens} tokens do not make {value} slices" + (f" of multiples of {multiple}" * (multiple > 1))
        raise SpecError(SLICES_KEY, rule, f"write a number of 1 to {units}")
    length, longer = divmod(units, value)
    return tuple((length + (i < longer)) * multiple for i in range(value))
