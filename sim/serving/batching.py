"""Batching policies: what of the waiting prompts the next iteration computes. Pure functions of the queue.

``prefill_first``: whole prompts, alone, before anybody decodes (Kwon et al. 2023, vLLM).
``chunked``: decoding rows always run, and pieces of prompts fill the rest of a budget of tokens (Agrawal et al. 2024,
Sarathi-Serve).
``static``: whole prompts, once all rows of the batch before have finished (FasterTransformer).
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, get_args

from msgspec import Struct

BatchingName = Literal["prefill_first", "chunked", "static"]
BATCHING_NAMES: Final = get_args(BatchingName)


class Batching(Struct, frozen=True, kw_only=True):
    """A policy with its limits. ``max_rows``: sequences in the batch; ``max_tokens``: tokens of an iteration."""

    name: BatchingName = "prefill_first"
    max_rows: int = 256
    max_tokens: int = 8192

    @property
    def mixes(self) -> bool:
        """Return whether rows decode in the same iteration in which prompts are computed."""
        return self.name == "chunked"

    def shares(self, num_rows: int, positions: int, waiting: Iterable[int]) -> Iterator[int]:
        """Yield how many tokens of each waiting prompt, in order, the next iteration computes; ends at the first none.

        ``waiting``: tokens that each prompt still lacks. ``num_rows`` sequences decode, with ``positions`` each. A
        whole prompt that is longer than the budget is computed alone.
        """
        if self.name == "static" and num_rows:
            return
        budget = self.max_tokens - (num_rows * positions if self.mixes else 0)
        for place, tokens in enumerate(waiting):
            share = min(tokens, budget) if self.mixes else tokens
            if share < 1 or (share > budget and place):
                return
            budget -= share
            yield share
