"""Element types by precision."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrecisionTypes:
    """Mixed precision keeps master weights, moments and, unless asked otherwise, gradients in 32 bits.

    That is 18 bytes per parameter, as in Megatron-LM.
    """

    parameter: str
    activation: str
    gradient: str
    master: str
    mixed: bool


PRECISIONS: Mapping[str, PrecisionTypes] = {
    "fp16": PrecisionTypes("float16", "float16", "float32", "float32", mixed=True),
    "bf16": PrecisionTypes("bfloat16", "bfloat16", "float32", "float32", mixed=True),
    "fp32": PrecisionTypes("float32", "float32", "float32", "float32", mixed=False),
    "fp64": PrecisionTypes("float64", "float64", "float64", "float64", mixed=False),
}
