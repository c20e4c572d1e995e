"""Matrix products of activations that travel between ranks in equal pieces of their first dimension (Wang et al. 2023).

``pieces``: how many there are, one of each rank over ``axes``. ``piece``: which one, counted from the rank's own: 0 is
its own, 1 that of the next rank, and so on around. Each kernel is a plain product that takes or makes only a piece, or
takes an operand in all of its pieces. A product that ``fills`` writes its piece into the buffer that it is given last,
the whole; else it makes a new one, of which the other pieces are still to be filled.
"""

from collections.abc import Sequence

from costmodels.kernels.gemm import GEMM_KERNELS
from costmodels.kernels.tensor import Attributes, Kernel, TensorSpec, Work, require

_MANY = float("inf")


def joined(operands: Sequence[TensorSpec], attributes: Attributes) -> list[TensorSpec]:
    """Return the operands with the one that ``in_pieces`` names, ``x`` or ``dy``, whole: its pieces stand in a row."""
    count, first = attributes["pieces"], 0 if attributes["in_pieces"] == "x" else 1
    pieces = operands[first : first + count]
    require(len(set(pieces)) == 1 and len(pieces) == count, f"there must be {count} equal pieces", *operands)
    return [*operands[:first], _whole(pieces[0], attributes), *operands[first + count :]]


def _whole(piece: TensorSpec, attributes: Attributes) -> TensorSpec:
    return piece.like(piece.shape[0] * attributes["pieces"], *piece.shape[1:])


def _piece(whole: TensorSpec, attributes: Attributes) -> TensorSpec:
    count = attributes["pieces"]
    require(whole.shape[0] % count == 0, f"the first dimension must divide into {count} pieces", whole)
    return whole.like(whole.shape[0] // count, *whole.shape[1:])


def _operands(inputs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return inputs[:-1] if attributes["fills"] else inputs


def _filling(name: str, plain: Kernel) -> Kernel:
    """Return the product of a piece of the activation, put at its rows of the whole product."""

    def outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
        (made,) = plain.outputs(_operands(inputs, attributes), attributes)
        whole = _whole(made, attributes)
        if not attributes["fills"]:
            return (whole,)
        require(inputs[-1].shape == whole.shape, "what is filled must have the whole product's shape", *inputs)
        return (inputs[-1],)

    def work(inputs: Sequence[TensorSpec], made: Sequence[TensorSpec], attributes: Attributes) -> Work:
        return plain.work(_operands(inputs, attributes), (_piece(made[0], attributes),), attributes)

    least, most = plain.num_inputs
    return Kernel(name, plain.family, (least, most + 1), outputs, work)


def _of_rows(name: str, plain: Kernel) -> Kernel:
    """Return the product of a piece of an activation that is given as a whole: a piece of the product."""

    def taken(inputs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
        return (_piece(inputs[0], attributes), *inputs[1:])

    def outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
        return plain.outputs(taken(inputs, attributes), attributes)

    def work(inputs: Sequence[TensorSpec], made: Sequence[TensorSpec], attributes: Attributes) -> Work:
        return plain.work(taken(inputs, attributes), made, attributes)

    return Kernel(name, plain.family, plain.num_inputs, outputs, work)


def _of_all_pieces(name: str, plain: Kernel) -> Kernel:
    """Return one product of whole operands, one of which is given in pieces."""

    def outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
        return plain.outputs(joined(inputs, attributes), attributes)

    def work(inputs: Sequence[TensorSpec], made: Sequence[TensorSpec], attributes: Attributes) -> Work:
        return plain.work(joined(inputs, attributes), made, attributes)

    return Kernel(name, plain.family, (plain.num_inputs[0], _MANY), outputs, work)


_PLAIN = {kernel.name: kernel for kernel in GEMM_KERNELS}

GEMM_PIECE_KERNELS = (
    _filling("matmul_piece", _PLAIN["matmul"]),
    _filling("matmul_piece_input_gradient", _PLAIN["matmul_input_gradient"]),
    _of_rows("matmul_rows", _PLAIN["matmul"]),
    _of_all_pieces("matmul_pieces_weight_gradient", _PLAIN["matmul_weight_gradient"]),
)
