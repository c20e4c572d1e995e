"""The electric power of a device: idle, arithmetic and memory, up to its limit.

The mean power of some time is min(limit, idle + arithmetic x FLOP rate / peak + memory x byte rate / bandwidth).

The three parts, as fractions of the limit, were measured on one H200 (limit 700 W) with its energy counter
(nvmlDeviceGetTotalEnergyConsumption), 6 to 12 s each, in November 2026. Idle with a context: 116 W. Products of
8192 x 8192 x 8192 in bfloat16, with pauses that keep the mean below the limit, busy 47 %, 21 % and 8 % of the time:
535, 309 and 193 W; arithmetic is fitted to the first, and the model says 302 and 186 W for the others. A copy of 4.25
TB/s: 609 W, from which memory follows. Not used for the fit: products of 1024 x 1024 x 1024 at 191 TFLOP/s: 385 W, by
the model 401 W; reading three and writing one array at 3.7 TB/s: 561 W, by the model 545 W; whole training steps of
transformers of width 1,024 to 8,192: 691 to 695 W, by the model the limit.

What it leaves out: the operands' values (writing zeros took 380 W, by the model 505 W), arithmetic of ordinary units (a
sum over one array took 686 W, by the model 604 W; an exact GELU 698 W, by the model 469 W), and collectives, which take
some power beyond idle.
"""

from typing import Final

IDLE: Final = 116.0 / 700.0
ARITHMETIC: Final = 1140.0 / 700.0
"""At the dense peak, which the limit does not allow for long."""
MEMORY: Final = 556.0 / 700.0
"""At the bandwidth of the data sheet."""


def mean_power_w(limit_w: float, flop_fraction: float, bandwidth_fraction: float) -> float:
    """Return the mean watts of a device whose arithmetic and memory run at fractions of their peaks on average.

    Assumes that devices of all kinds divide their limit as the H200 does.
    """
    return limit_w * min(1.0, IDLE + ARITHMETIC * flop_fraction + MEMORY * bandwidth_fraction)
