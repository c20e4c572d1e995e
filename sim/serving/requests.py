"""Requests to a service: when they arrive, and how many tokens they bring and want; drawn arrivals and lengths."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Requests(Struct, frozen=True, kw_only=True, eq=False):
    """Requests in order of arrival, a row of each array per request.

    ``prompt_tokens`` and ``output_tokens``: 1 or more each; the simulator alone knows the latter in advance.
    ``prefixes``: per request, names of the contents of its prompt's first pieces of ``prefix_tokens`` tokens each: two
    requests whose first names are equal have equal first tokens. Empty: nothing is known to be shared.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    prefixes: tuple[tuple[int, ...], ...] = ()
    prefix_tokens: int = 512

    def __len__(self) -> int:
        return len(self.arrival_s)

    def first(self, count: int) -> "Requests":
        """Return the first so many requests."""
        return Requests(
            arrival_s=self.arrival_s[:count],
            prompt_tokens=self.prompt_tokens[:count],
            output_tokens=self.output_tokens[:count],
            prefixes=self.prefixes[:count],
            prefix_tokens=self.prefix_tokens,
        )

    def at_rate(self, requests_per_s: float) -> "Requests":
        """Return the same requests with arrivals stretched so that so many come per second in the mean."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        scale = (len(self) - 1) / span_s / requests_per_s if span_s > 0.0 else 0.0
        return Requests(
            arrival_s=(self.arrival_s - self.arrival_s[0]) * scale,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            prefixes=self.prefixes,
            prefix_tokens=self.prefix_tokens,
        )


def gamma_arrivals_s(count: int, requests_per_s: float, burstiness: float, generator: np.random.Generator) -> Floats:
    """Return arrival times in seconds whose gaps have the mean 1 / rate and the squared variation ``burstiness``.

    Gaps follow a gamma distribution; 1 is a Poisson process, more comes in bursts, 0 is regular.
    """
    if not burstiness:
        return np.arange(count, dtype=np.float64) / requests_per_s
    gaps = generator.gamma(1.0 / burstiness, burstiness / requests_per_s, count)
    return np.cumsum(gaps)


def drawn_lengths(count: int, mean: float, variation: float, most: int, generator: np.random.Generator) -> Ints:
    """Return lengths in tokens, log-normal with this mean and coefficient of variation, from 1 to ``most``."""
    if not variation:
        return np.full(count, min(most, max(1, round(mean))), dtype=np.int64)
    spread = np.sqrt(np.log1p(variation**2))
    drawn = generator.lognormal(np.log(mean) - spread**2 / 2.0, spread, count)
    return np.clip(np.rint(drawn), 1, most).astype(np.int64)
