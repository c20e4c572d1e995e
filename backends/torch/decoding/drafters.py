"""What drafts tokens during generation: a smaller model, heads of the target, the text itself, or parallel guesses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from backends.torch.decoding.decoder import Cache, Decoder
from backends.torch.decoding.heads.draft_heads import DraftHeads, Guesser
from backends.torch.decoding.step import Step, numbers
from sim.serving.decoding.draft_tree import DraftTree, Floats, chain_of, probabilities
from sim.serving.decoding.growth import Growth, Node, grown_tree


class Drafter(Protocol):
    """Makes the tree that a step verifies. The prompt counts as the first step."""

    def settle(self, step: Step) -> None:
        """Take note of what a step has settled."""

    def draft(self, root: int) -> DraftTree:
        """Return a tree below the token that is sure."""


class NoDraft:
    """One token at a time: autoregressive decoding."""

    def settle(self, step: Step) -> None:
        """Take note of nothing."""
        del step

    def draft(self, root: int) -> DraftTree:
        """Return the root alone."""
        return chain_of((root,))


@dataclass(slots=True)
class ModelDrafter:
    """A chain from a smaller model (Leviathan et al. 2023); drawn at a temperature, or greedy at 0."""

    model: Decoder
    drafted: int
    temperature: float = 0.0
    generator: np.random.Generator = field(default_factory=np.random.default_rng)
    _tokens: list[int] = field(default_factory=list)
    _cache: Cache = field(default_factory=Cache)

    def settle(self, step: Step) -> None:
        """Drop the cached rows of rejected tokens; a chain's accepted rows stay."""
        self._tokens += step.tokens
        if len(self._cache) > len(self._tokens):
            self._cache.keep(len(self._tokens))

    def draft(self, root: int) -> DraftTree:
        """Return a chain below the root, with the distributions that it was drawn from unless it is greedy."""
        tokens, proposals = [root], [np.zeros(self.model.spec.vocab_size)]
        fed = [*self._tokens[len(self._cache) :], root]
        for _ in range(self.drafted):
            hidden = self.model(torch.tensor([fed]), self._cache)
            logits = numbers(self.model.head(hidden[0, -1]))
            proposals.append(probabilities(logits, self.temperature or 1.0))
            drawn = self.generator.choice(len(logits), p=proposals[-1]) if self.temperature else logits.argmax()
            tokens.append(int(drawn))
            fed = tokens[-1:]
        return chain_of(tokens, np.stack(proposals) if self.temperature else None)


@dataclass(slots=True)
class TreeDrafter:
    """A tree of guesses of draft heads. ``growth``: the rule that makes it; ``num_nodes``: its size, at most.

    ``frontiers``: for each draft, how many nodes of each depth were guessed after.
    """

    guesser: Guesser
    num_depths: int
    growth: Growth
    num_nodes: int
    frontiers: list[tuple[int, ...]] = field(default_factory=list)

    def settle(self, step: Step) -> None:
        """Let the guesser take note of what a step has settled."""
        self.guesser.settle(step)

    def draft(self, root: int) -> DraftTree:
        """Return the tree that the rule makes of the guesses, depth by depth."""
        sizes = list[int]()

        def guess(depth: int, frontier: Sequence[Node]) -> Floats:
            sizes.append(len(frontier))
            return self.guesser.after(depth, frontier)

        tree, _ = grown_tree(root, self.growth, self.num_depths, self.num_nodes, guess)
        self.frontiers.append(tuple(sizes))
        return tree


def tree_drafter(heads: DraftHeads, growth: Growth, num_nodes: int) -> TreeDrafter:
    """Return a drafter of trees that knows no text yet."""
    return TreeDrafter(heads.guesser(), heads.num_depths, growth, num_nodes)


@dataclass(slots=True)
class LookupDrafter:
    """A chain copied from the text: what followed the last tokens when they stood there before (prompt lookup).

    ``longest``: tokens that must match, at most; fewer are tried next.
    """

    drafted: int
    longest: int = 3
    _tokens: list[int] = field(default_factory=list)

    def settle(self, step: Step) -> None:
        """Add the tokens to the text."""
        self._tokens += step.tokens

    def draft(self, root: int) -> DraftTree:
        """Return the continuation of the latest match, or the root alone."""
        text = [*self._tokens, root]
        for length in range(min(self.longest, len(text) - 1), 0, -1):
            ending = text[-length:]
            for start in range(len(text) - length - 1, -1, -1):
                if text[start : start + length] == ending:
                    after = start + length
                    return chain_of((root, *text[after : after + self.drafted]))
        return chain_of((root,))


@dataclass(slots=True)
class ParallelDrafter:
    """Guesses for the next tokens that every pass improves at once: the fixed-point iteration of Jacobi.

    Santilli et al. 2023: a pass replaces each guess by the target's choice after the guess before it. With
    ``num_candidates``, lookahead decoding (Fu et al. 2024): tokens that followed one from the other in earlier passes
    are pieces of ``piece_tokens``; those that begin with the root are branches beside the guesses, and verified, too.
    """

    window: int
    num_candidates: int = 0
    piece_tokens: int = 3
    _guesses: list[tuple[int, ...]] = field(default_factory=list)
    _chain: list[tuple[int, ...]] = field(default_factory=list)
    _pieces: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    def settle(self, step: Step) -> None:
        """Replace the guesses by the target's choices after them, and keep pieces of the passes."""
        chosen = [(*before, token) for before, token in zip(self._chain, step.choices, strict=False)]
        for piece in chosen:
            if len(piece) >= self.piece_tokens:
                self._keep(piece[-self.piece_tokens :])
        within = step.path[-1] < len(self._chain)  # else a piece was accepted, and the guesses lie in the past
        self._guesses = [piece[1 - self.piece_tokens :] for piece in chosen[len(step.path) :]] if within else []

    def draft(self, root: int) -> DraftTree:
        """Return the guesses as a chain, and pieces that begin with the root as branches beside it."""
        guesses = [*self._guesses, *[(root,)] * (self.window - len(self._guesses))]
        self._chain = [(root,), *guesses]
        tokens, parents = [piece[-1] for piece in self._chain], list(range(-1, self.window))
        for piece in self._pieces.get(root, []):
            for place, token in enumerate(piece[1:]):
                parents.append(len(tokens) - 1 if place else 0)
                tokens.append(token)
        return DraftTree(tuple(tokens), tuple(parents))

    def _keep(self, piece: tuple[int, ...]) -> None:
        """Remember a piece by its first token; the oldest of too many is forgotten."""
        known = self._pieces.setdefault(piece[0], [])
        if piece not in known:
            known.append(piece)
            del known[: len(known) - self.num_candidates]
