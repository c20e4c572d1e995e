"""Work out ``sequence_parallel: auto``."""

from collections.abc import Mapping

from scenarios.reading.schema.parallel import ParallelSection


def shares_sequence(section: ParallelSection, degrees: Mapping[str, int], sequence_length: int) -> bool:
    """Return whether tensor-parallel ranks can share out the sequence: there are several, and they divide every task.

    A task has the tokens of a sequence, or of one slice of it, on the ranks of one place of context parallelism.
    """
    degree, tokens = degrees["tensor"], sequence_length // degrees["context"]
    pipeline = section.pipeline
    slices = pipeline.token_slices
    if degree == 1 or tokens % degree:
        return False
    if isinstance(slices, tuple):
        return not any(length % degree for length in slices)
    if isinstance(slices, int):
        return slices <= sequence_length // degree
    return (pipeline.slice_granularity or degree) % degree == 0
