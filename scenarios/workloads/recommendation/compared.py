"""Words on an execution's counts and weights beside those that it should have."""

from collections.abc import Sequence

from scenarios.report.blocks import Piece


def shown_counts(differing: Sequence[str]) -> tuple[Piece, ...]:
    """Return whether all counts are the simulated ones, and which are not."""
    if differing:
        return (Piece("FAILED, other than simulated: "), Piece(", ".join(differing), "bad"))
    return (Piece("equal to the simulated ones in every batch", "good"),)


def shown_weights(num_weights: int, num_differing: int, reference: str) -> tuple[Piece, ...]:
    """Return whether all weights have the bits of those of a reference."""
    if num_differing:
        return (Piece("FAILED: "), Piece(f"{num_differing:,} of {num_weights:,} weights differ", "bad"))
    return (Piece(f"all {num_weights:,} weights have the bits of {reference}", "good"),)
