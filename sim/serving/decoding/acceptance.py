"""Acceptance of drafted tokens: by a draft model's distribution, and by Medusa's typical acceptance."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def chain_lengths(acceptance: float, drafted: int) -> tuple[float, ...]:
    """Return the probabilities that a step yields 1, 2, ... tokens, where each drafted token is accepted alike.

    Leviathan et al. 2023, equation 1: E = (1 - a^(g+1)) / (1 - a) for g drafted tokens.
    """
    return (*((1.0 - acceptance) * acceptance**length for length in range(drafted)), acceptance**drafted)


def chain_tokens(acceptance: float, drafted: int) -> float:
    """Return the expected tokens of a step."""
    return float(sum(acceptance**length for length in range(drafted + 1)))


def best_drafted(acceptance: float, relative_cost: float, most: int = 64) -> tuple[int, float]:
    """Return how many tokens to draft, and the speedup over one token at a time.

    Leviathan et al. 2023, theorem 3.8: E / (g c + 1), where c is the time of a draft's pass over that of the target's.
    """
    speedups = [chain_tokens(acceptance, drafted) / (drafted * relative_cost + 1.0) for drafted in range(1, most + 1)]
    best = max(speedups)
    return speedups.index(best) + 1, best


def acceptance_rate(target: Floats, draft: Floats) -> float:
    """Return the probability that a token drawn from ``draft`` is accepted: the sum of the smaller probabilities."""
    return float(np.minimum(target, draft).sum())


def residual(target: Floats, draft: Floats) -> Floats:
    """Return the distribution of the token that replaces a rejected one."""
    rest = np.maximum(target - draft, 0.0)
    whole: float = rest.sum()
    return np.asarray(rest / whole, dtype=np.float64)


def speculative_sample(target: Floats, draft: Floats, drafts: NDArray[np.int64], random: Floats) -> NDArray[np.int64]:
    """Return tokens that are distributed as ``target``, from tokens that were drawn from ``draft``.

    ``random``: two numbers from 0 to 1 per token [2, n]: for the acceptance, and for the replacement. Leviathan et al.
    2023, algorithm 1.
    """
    accepted = random[0] < np.minimum(1.0, target[drafts] / draft[drafts])
    if accepted.all():
        return drafts
    replaced = np.searchsorted(np.cumsum(residual(target, draft)), random[1], side="right")
    return np.where(accepted, drafts, replaced)


def typical_acceptance(target: Floats, epsilon: float = 0.09, delta: float = 0.3) -> NDArray[np.bool_]:
    """Return which tokens Medusa accepts at a temperature: p > min(epsilon, delta exp(-entropy)) (Cai et al. 2024)."""
    positive = target[target > 0.0]
    entropy = -float((positive * np.log(positive)).sum())
    found: NDArray[np.bool_] = target > min(epsilon, delta * np.exp(-entropy))
    return found
