"""Train small mixtures of experts on Python's help pages, and record held-out loss against steps, tokens and experts.

    python -m backends.torch.quality.recording traces/quality/python_help.csv

takes less than a minute of one processor. Tokens are bytes. Loss is that of held-out pages, without the gate's noise.
"""

import csv
import sys
from collections.abc import Iterator
from math import cos, pi
from pathlib import Path
from typing import Final, get_args

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from backends.torch.decoding.decoder import DecoderSpec
from backends.torch.decoding.text import help_pages
from backends.torch.decoding.training import windows
from backends.torch.quality.mixture import Gate, Mixture, MixtureSpec
from sim.moe.dense_to_sparse import DenseToSparse
from traces.quality import COLUMNS

MODEL: Final = "2 layers of 64, 8 experts of 64"
_DECODER: Final = DecoderSpec(vocab_size=256, hidden_size=64, num_layers=2, num_heads=4)
_WINDOW, _BATCH, _JUDGED, _BETWEEN, _LEARNING_RATE = 65, 8, 32, 20, 3e-3


def curve(gate: Gate, num_steps: int, seed: int = 0) -> Iterator[tuple[str, str, int, int, str, str, str]]:
    """Yield a row of ``COLUMNS`` every 20 steps of a training with a gate.

    The dense-to-sparse gate cools from 2.0 to 0.3 in the first half, and keeps the best expert alone in the last
    quarter.
    """
    torch.manual_seed(seed)
    schedule = DenseToSparse(start=2.0, end=0.3, decay_steps=num_steps // 2, hard_after=3 * num_steps // 4)
    spec = MixtureSpec(num_experts=8, ffn_hidden_size=64, gate=gate, balance_loss=0.01, schedule=schedule)
    text, held_out = help_pages()
    batches = windows(list(text.encode()), _WINDOW, _BATCH, seed)
    judged = next(windows(list(held_out.encode()), _WINDOW, _JUDGED, seed + 1))
    model = Mixture(_DECODER, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.01)
    for step in range(num_steps):
        for experts in model.experts:
            experts.schedule = replace(schedule, step=step)
        rate = min(1.0, (step + 1) / 30) * 0.5 * (1.0 + cos(pi * step / num_steps))
        optimizer.param_groups[0]["lr"] = _LEARNING_RATE * rate
        active = _updated(model, optimizer, next(batches), spec.balance_loss)
        if (step + 1) % _BETWEEN == 0:
            tokens = (step + 1) * _BATCH * (_WINDOW - 1)
            yield MODEL, gate, step + 1, tokens, f"{active:.3f}", "loss", f"{_judgement(model, judged):.4f}"


def _updated(model: Mixture, optimizer: torch.optim.Optimizer, batch: Tensor, balance_loss: float) -> float:
    """Train on one batch; return the mean number of experts that a token chose."""
    loss = model.loss(batch) + balance_loss * sum((experts.balance for experts in model.experts), torch.zeros(()))
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return sum(experts.active_experts for experts in model.experts) / len(model.experts)


@torch.no_grad()
def _judgement(model: Mixture, judged: Tensor) -> float:
    model.eval()
    loss = float(model.loss(judged))
    model.train()
    return loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Path(sys.argv[1]).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name in get_args(Gate):
            writer.writerows(curve(name, num_steps=300))
