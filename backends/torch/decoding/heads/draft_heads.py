"""What all draft heads have in common: they guess from a decoder's last hidden states.

Head k guesses the token k places after the next one. Training passes all places of a text at once (``forward``); a
``Guesser`` serves one answer, step by step.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.torch.decoding.decoder import Cache
from backends.torch.decoding.step import Step, numbers
from sim.serving.decoding.draft_tree import Floats, probabilities
from sim.serving.decoding.growth import Node
from sim.serving.decoding.tree import Path


class Guesser(Protocol):
    """Guesses the tokens after the nodes of a tree. It serves one answer and remembers its text."""

    def settle(self, step: Step) -> None:
        """Take note of what a step has settled."""

    def after(self, depth: int, frontier: Sequence[Node]) -> Floats:
        """Return the probabilities of the token after each of these nodes [frontier, vocabulary].

        Depth 0 has one node, the root. All nodes of a later depth have their parents among those of the depth before.
        """


class DraftHeads(nn.Module, ABC):
    """Heads for ``num_depths`` tokens. ``distilled``: they learn the target's distributions, and not the text."""

    distilled: ClassVar[bool] = False
    num_depths: int

    @abstractmethod
    def forward(self, hidden: Tensor, following: Tensor) -> list[Tensor]:
        """Return each head's logits [batch, places, vocabulary] where all tokens before are the true ones.

        ``hidden`` [batch, places, width]; ``following`` [heads, batch, places]: the next tokens, those after them, ...
        """

    @abstractmethod
    def guesser(self) -> Guesser:
        """Return a guesser that knows no text yet."""


class HeadsInTurn(DraftHeads):
    """Heads of which each sees the token that the one before it guessed. A state goes from head to head."""

    def forward(self, hidden: Tensor, following: Tensor) -> list[Tensor]:
        """Return each head's logits; see ``DraftHeads``."""
        state, found = self.first_states(hidden, following[0], None), []
        for depth in range(self.num_depths):
            state, logits = self.step(depth, state, following[depth])
            found.append(logits)
        return found

    def guesser(self) -> Guesser:
        """Return a guesser that knows no text yet."""
        return _GuesserInTurn(self)

    @abstractmethod
    def first_states(self, hidden: Tensor, following: Tensor, memory: Cache | None) -> Tensor:
        """Return the states [batch, places, size] before the first head, at places after those in the memory.

        ``hidden`` [batch, places, width]; ``following`` [batch, places]: the token after each place.
        """

    @abstractmethod
    def step(self, depth: int, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next states [..., size] and logits [..., vocabulary] after these tokens [...]."""


@dataclass(slots=True)
class _GuesserInTurn:
    """Guesses of heads in turn: a node's state follows from its parent's and from its token."""

    heads: HeadsInTurn
    _memory: Cache = field(default_factory=Cache)
    _settled: tuple[Step, ...] = ()
    _states: dict[Path, Tensor] = field(default_factory=dict)

    def settle(self, step: Step) -> None:
        """Keep the step until its next token is known."""
        self._settled = (step,)

    def after(self, depth: int, frontier: Sequence[Node]) -> Floats:
        """Return the probabilities after each node; see ``Guesser``."""
        if depth:
            above = torch.stack([self._states[node.path[:-1]] for node in frontier])
        else:
            hidden, following = pairs(self._settled[0], frontier[0].token)
            above = self.heads.first_states(hidden, following, self._memory)[0, -1:]
        tokens = torch.tensor([node.token for node in frontier])
        states, logits = self.heads.step(depth, above, tokens)
        self._states.update(zip((node.path for node in frontier), states, strict=True))
        return probabilities(numbers(logits), 1.0)


def pairs(step: Step, root: int) -> tuple[Tensor, Tensor]:
    """Return the settled states [1, tokens, width] and the token after each of them, last the root [1, tokens]."""
    return step.hidden[None], torch.tensor([[*step.tokens[1:], root]])


class ResidualBlock(nn.Module):
    """x + SiLU(W y), x at first. ``y`` is x itself (Cai et al. 2024), or a longer vector that begins with x."""

    def __init__(self, width: int, inputs: int | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs or width, width, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, y: Tensor) -> Tensor:
        """Return the block's output [..., width] from inputs [..., inputs]."""
        found: Tensor = y[..., : self.linear.out_features] + functional.silu(self.linear(y))
        return found


def unit_rows(weight: Tensor) -> Tensor:
    """Return a frozen table [tokens, width] whose rows have a mean square of 1."""
    return functional.normalize(weight.detach(), dim=1) * float(weight.shape[1] ** 0.5)
