"""Element types by precision."""

from collections.abc import Mapping

from msgspec import Struct

from sim.plan.words.buffer import E4M3


class PrecisionTypes(Struct, frozen=True):
    """Mixed precision keeps master weights, moments and, unless asked otherwise, gradients in 32 bits.

    That is 18 bytes per parameter, as in Megatron-LM. ``product``: the type of operands in the layers' products. If it
    differs from that of activations, operands are cast to it, gradients to E5M2 (see ``sim.plan.functions.float8``).
    """

    parameter: str
    activation: str
    gradient: str
    master: str
    mixed: bool
    product: str

    @property
    def casts(self) -> bool:
        """Return whether operands of the layers' products are cast."""
        return self.product != self.activation


PRECISIONS: Mapping[str, PrecisionTypes] = {
    "fp8": PrecisionTypes("bfloat16", "bfloat16", "float32", "float32", mixed=True, product=E4M3),
    "fp16": PrecisionTypes("float16", "float16", "float32", "float32", mixed=True, product="float16"),
    "bf16": PrecisionTypes("bfloat16", "bfloat16", "float32", "float32", mixed=True, product="bfloat16"),
    "fp32": PrecisionTypes("float32", "float32", "float32", "float32", mixed=False, product="float32"),
    "fp64": PrecisionTypes("float64", "float64", "float64", "float64", mixed=False, product="float64"),
}
