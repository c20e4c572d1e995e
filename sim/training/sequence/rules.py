"""Checks of shared sequences: tokens and heads that ranks must share out evenly."""

from typing import Final

from sim.training.errors import SpecError

DEGREE_KEY: Final = "parallel.context.degree"


def check_chunks(num_tokens: int, degree: int) -> None:
    """Raise SpecError unless a sequence makes two chunks per rank."""
    if num_tokens % (2 * degree):
        raise SpecError(
            DEGREE_KEY,
            f"sequence_length {num_tokens} does not divide into 2 x {degree} chunks, two per rank",
            f"choose a degree whose double divides {num_tokens}, or change model.sequence_length",
        )


def check_tokens(tokens: int, multiple: int) -> None:
    """Raise SpecError unless the tokens of a rank are a multiple of ``multiple``."""
    if tokens % multiple:
        raise SpecError(
            DEGREE_KEY,
            f"a rank's {tokens} tokens do not divide over {multiple} tensor-parallel ranks",
            f"choose degrees for which sequence_length / context degree is a multiple of {multiple}",
        )
