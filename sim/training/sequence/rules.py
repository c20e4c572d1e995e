"""Checks of shared sequences: tokens and heads that ranks must share out evenly."""

from typing import Final

from sim.training.errors import SpecError
from sim.training.sequence.method import Shares

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


def check_blocks(num_tokens: int, degree: int) -> None:
    """Raise SpecError unless a sequence makes one block per rank."""
    if num_tokens % degree:
        raise SpecError(
            DEGREE_KEY,
            f"sequence_length {num_tokens} does not divide into {degree} blocks, one per rank",
            f"choose a degree that divides {num_tokens}, or change model.sequence_length",
        )


def check_levels(key: str, degree: int, inner_degree: int) -> None:
    """Raise SpecError unless ranks are two or more groups of ``inner_degree``, which is 2 or more."""
    if 2 <= inner_degree < degree and degree % inner_degree == 0:
        return
    valid = [n for n in range(2, degree // 2 + 1) if degree % n == 0]
    rule = f"{degree} ranks are not two or more groups of {inner_degree} ranks, 2 or more"
    nearest = min(valid, key=lambda n: abs(n - inner_degree), default=0)
    raise SpecError(key, rule, f"write {nearest}" if valid else "write method: ulysses or p2p, without inner_degree")


def check_keeps_scores(name: str, shares: Shares) -> None:
    """Raise SpecError for fused attention, which keeps no scores, where a method needs them."""
    if shares.fused:
        raise SpecError(
            "model.attention",
            f"method {name} keeps the scores of all keys, and fused attention keeps none",
            "write attention: core, or parallel.context.method: p2p",
        )


def check_heads(key: str, degree: int, shares: Shares) -> None:
    """Raise SpecError unless ranks share out the heads of keys and values that one tensor-parallel rank has."""
    if shares.num_kv_heads % degree:
        best = max(n for n in range(1, degree + 1) if shares.num_kv_heads % n == 0)
        has = f"{shares.num_kv_heads} head{'s' * (shares.num_kv_heads > 1)} of keys and values"
        rule = f"{degree} ranks do not share out evenly the {has} of a tensor-parallel rank"
        others = "method: p2p, which cuts no heads"
        raise SpecError(key, rule, f"write {best}, or {others}" if best > 1 else f"write {others}")
