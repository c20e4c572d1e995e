"""Training of a small decoder on text, and of draft heads on its frozen states. Minutes on a CPU."""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import cos, pi

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.torch.decoding.decoder import Decoder
from backends.torch.decoding.heads.draft_heads import DraftHeads


def windows(tokens: Sequence[int], length: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Yield batches [batch, length] of random pieces of a text, for ever."""
    text, generator = torch.tensor(tokens), torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - length, (batch, 1), generator=generator)
        yield text[starts + torch.arange(length)]


class Learner:
    """A module in training: AdamW with a cosine of the learning rate over so many steps."""

    def __init__(self, module: nn.Module, num_steps: int, learning_rate: float) -> None:
        self.module, self.num_steps, self.learning_rate = module, num_steps, learning_rate
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
        self.losses = list[float]()

    def learn(self, loss: Tensor) -> None:
        """Take one step down this loss."""
        step = len(self.losses)
        rate = min(1.0, (step + 1) / 50) * 0.5 * (1.0 + cos(pi * step / self.num_steps))
        self.optimizer.param_groups[0]["lr"] = self.learning_rate * rate
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())

    @property
    def last_loss(self) -> float:
        """Return the mean of the last losses."""
        last = self.losses[-20:]
        return sum(last) / len(last)


def train_decoder(model: Decoder, batches: Iterator[Tensor], num_steps: int, learning_rate: float = 2e-3) -> float:
    """Train a model to guess the next token; return its last loss, in nats per token."""
    learner = Learner(model, num_steps, learning_rate)
    for tokens in islice(batches, num_steps):
        logits = model.head(model(tokens[:, :-1]))
        learner.learn(functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    return learner.last_loss


def train_heads(
    model: Decoder, heads: Sequence[DraftHeads], batches: Iterator[Tensor], num_steps: int, learning_rate: float = 1e-3
) -> list[float]:
    """Train several heads on the same states of a model that stays as it is; return the last loss of each.

    Later heads weigh less, 0.8 times the one before (Cai et al. 2024). Heads that are distilled learn the model's
    distribution of each token, the others the token itself.
    """
    learners = [Learner(of, num_steps, learning_rate) for of in heads]
    for tokens in islice(batches, num_steps):
        with torch.no_grad():
            hidden = model(tokens)
            chances = model.head(hidden).softmax(dim=-1)
        for of, learner in zip(heads, learners, strict=True):
            learner.learn(_loss_of_heads(of, hidden, tokens, chances if of.distilled else None))
    return [learner.last_loss for learner in learners]


def _loss_of_heads(heads: DraftHeads, hidden: Tensor, tokens: Tensor, chances: Tensor | None) -> Tensor:
    """Return the loss of heads on a text. ``chances`` [batch, tokens, vocabulary]: what they learn; None: the text."""
    logits, labels = heads_and_labels(heads, hidden, tokens)
    losses = []
    for depth, (guesses, label) in enumerate(zip(logits, labels, strict=True)):
        wanted = label if chances is None else chances[:, 1 + depth : 1 + depth + label.shape[1]]
        losses.append(0.8**depth * functional.cross_entropy(guesses.flatten(0, 1), wanted.flatten(0, 1)))
    return torch.stack(losses).sum()


def heads_and_labels(heads: DraftHeads, hidden: Tensor, tokens: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return each head's logits [batch, places, vocabulary] and the tokens that it should guess [batch, places].

    ``hidden`` [batch, tokens, width]: states of ``tokens`` [batch, tokens]; heads see the true tokens between.
    """
    depths = heads.num_depths
    places = tokens.shape[1] - depths - 1
    following = [tokens[:, 1 + depth : 1 + depth + places] for depth in range(depths + 1)]
    return heads(hidden[:, :places], torch.stack(following[:-1])), following[1:]
