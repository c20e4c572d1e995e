"""The progress of a job as a random variable: a Beta distribution from an online regression (ONES, SC 2021).

alpha is the number of epochs done; beta, at least 1, comes from a small network of the job's validation results, and
means about the epochs that are left. Weights are drawn anew and fitted to the epochs of jobs that are done: minus the
logarithm of the density at the true progress, by Adam. Before the first fit the weights are those that were drawn.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, digamma

from sim.jobs.job import Job

NUM_FEATURES = 5
HIDDEN = 64
NUM_PASSES = 60
BATCH = 8
MOST_ROWS = 2_000
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 1e-4
MOMENTS = (0.9, 0.999)
SMALLEST = 1e-8

Array = NDArray[np.float64]


def features(job: Job, epochs: float) -> list[float]:
    """Return log of samples of an epoch, first loss, epochs done, fraction of the loss gone, accuracy."""
    training = job.training
    assert training is not None
    curve, seen = training.curve, float(int(epochs))
    first = curve.loss(0.0)
    return [
        float(np.log(training.samples_per_epoch)),
        first,
        epochs,
        1.0 - curve.loss(seen) / first,
        curve.accuracy_after(seen),
    ]


def minus_log_density(alpha: Array, beta: Array, progress: Array) -> Array:
    """Return minus the logarithm of the density of Beta(alpha, beta)."""
    return np.asarray(betaln(alpha, beta) - (alpha - 1.0) * np.log(progress) - (beta - 1.0) * np.log1p(-progress))


def expected_rest(alpha: float, beta: float) -> float:
    """Return the expected work left, divided by that done: E[1 / rho - 1]; infinite where alpha is at most 1."""
    return beta / (alpha - 1.0) if alpha > 1.0 else float("inf")


@dataclass(frozen=True)
class Network:
    """beta = 1 + relu(w2 tanh(W1 x + b1) + b2). ``weights``: W1 [5, 64], b1 [64], w2 [64], b2 [1]."""

    weights: tuple[Array, Array, Array, Array]

    def beta(self, rows: Array) -> Array:
        """Return beta of each row of features [n, 5]."""
        first, bias, second, offset = self.weights
        return np.asarray(1.0 + np.maximum(0.0, np.tanh(rows @ first + bias) @ second + offset[0]))

    def gradients(self, rows: Array, progress: Array) -> tuple[Array, Array, Array, Array]:
        """Return the gradients of the mean loss with respect to the weights."""
        first, bias, second, offset = self.weights
        hidden = np.tanh(rows @ first + bias)
        shown = hidden @ second + offset[0]
        alpha, beta = rows[:, 2], 1.0 + np.maximum(0.0, shown)
        slope = (digamma(beta) - digamma(alpha + beta) - np.log1p(-progress)) * (shown > 0.0) / len(rows)
        back = slope[:, None] * second * (1.0 - hidden**2)
        return rows.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(keepdims=True)


def drawn(random: np.random.Generator) -> Network:
    """Return a network of standard normal weights."""
    shapes = ((NUM_FEATURES, HIDDEN), (HIDDEN,), (HIDDEN,), (1,))
    first, bias, second, offset = (random.standard_normal(shape) for shape in shapes)
    return Network((first, bias, second, offset))


def fitted(rows: Array, progress: Array, random: np.random.Generator) -> Network:
    """Return a network fitted to rows of features [n, 5] and their true progress [n], between 0 and 1."""
    if len(rows) > MOST_ROWS:
        kept = random.choice(len(rows), MOST_ROWS, replace=False)
        rows, progress = rows[kept], progress[kept]
    flat = np.concatenate([each.ravel() for each in drawn(random).weights])
    network = _shaped(flat)
    mean, square = np.zeros_like(flat), np.zeros_like(flat)
    step = 0
    for _ in range(NUM_PASSES):
        order = random.permutation(len(rows))
        mixed_rows, mixed_progress = rows[order], progress[order]
        for begin in range(0, len(order), BATCH):
            chosen = slice(begin, begin + BATCH)
            step += 1
            gradients = network.gradients(mixed_rows[chosen], mixed_progress[chosen])
            slope = np.concatenate([each.ravel() for each in gradients]) + WEIGHT_DECAY * flat
            mean = MOMENTS[0] * mean + (1.0 - MOMENTS[0]) * slope
            square = MOMENTS[1] * square + (1.0 - MOMENTS[1]) * slope**2
            scale = np.sqrt(square / (1.0 - MOMENTS[1] ** step)) + SMALLEST
            flat -= LEARNING_RATE * (mean / (1.0 - MOMENTS[0] ** step)) / scale
    return network


def _shaped(flat: Array) -> Network:
    """Return the network whose weights are views of a flat array."""
    first, bias, second, offset = np.split(flat, np.cumsum([NUM_FEATURES * HIDDEN, HIDDEN, HIDDEN]))
    return Network((first.reshape(NUM_FEATURES, HIDDEN), bias, second, offset))


def epoch_rows(job: Job) -> tuple[list[list[float]], list[float]]:
    """Return features and progress of each epoch of a job that is done, the last one left out."""
    assert job.training is not None
    epochs = range(1, int(np.ceil(job.training.num_epochs)))
    return [features(job, epoch) for epoch in epochs], [epoch / job.training.num_epochs for epoch in epochs]
