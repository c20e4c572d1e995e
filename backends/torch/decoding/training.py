"""Training of a small decoder on text, and of draft heads on its frozen states. Minutes on a CPU."""

from collections.abc import Callable, Iterator, Sequence
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


def trained(module: nn.Module, loss_of: Callable[[], Tensor], num_steps: int, learning_rate: float) -> float:
    """Train a module's parameters by AdamW with a cosine of the learning rate; return the mean of the last losses."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    losses = list[float]()
    for step in range(num_steps):
        rate = min(1.0, (step + 1) / 50) * 0.5 * (1.0 + cos(pi * step / num_steps))
        optimizer.param_groups[0]["lr"] = learning_rate * rate
        loss = loss_of()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    last = losses[-20:]
    return sum(last) / len(last)


def train_decoder(model: Decoder, batches: Iterator[Tensor], num_steps: int, learning_rate: float = 2e-3) -> float:
    """Train a model to guess the next token; return its last loss, in nats per token."""

    def loss() -> Tensor:
        tokens = next(batches)
        logits = model.head(model(tokens[:, :-1]))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return trained(model, loss, num_steps, learning_rate)


def train_heads(
    model: Decoder, heads: DraftHeads, batches: Iterator[Tensor], num_steps: int, learning_rate: float = 1e-3
) -> float:
    """Train heads on the states of a model that stays as it is; return their last loss.

    Later heads weigh less, 0.8 times the one before (Cai et al. 2024). Heads that are distilled learn the model's
    distribution of each token, the others the token itself.
    """

    def loss() -> Tensor:
        tokens = next(batches)
        with torch.no_grad():
            hidden = model(tokens)
            chances = model.head(hidden).softmax(dim=-1) if heads.distilled else None
        logits, labels = heads_and_labels(heads, hidden, tokens)
        losses = []
        for depth, (guesses, label) in enumerate(zip(logits, labels, strict=True)):
            wanted = label if chances is None else chances[:, 1 + depth : 1 + depth + label.shape[1]]
            losses.append(0.8**depth * functional.cross_entropy(guesses.flatten(0, 1), wanted.flatten(0, 1)))
        return torch.stack(losses).sum()

    return trained(heads, loss, num_steps, learning_rate)


def heads_and_labels(heads: DraftHeads, hidden: Tensor, tokens: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return each head's logits [batch, places, vocabulary] and the tokens that it should guess [batch, places].

    ``hidden`` [batch, tokens, width]: states of ``tokens`` [batch, tokens]; heads see the true tokens between.
    """
    depths = heads.num_depths
    places = tokens.shape[1] - depths - 1
    following = [tokens[:, 1 + depth : 1 + depth + places] for depth in range(depths + 1)]
    return heads(hidden[:, :places], torch.stack(following[:-1])), following[1:]
