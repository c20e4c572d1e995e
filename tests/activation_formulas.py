"""The published closed forms of the activations that a layer and the last stage keep."""

from typing import Literal


def activation_bytes_per_layer(
    *,
    sequence_length: int,
    microbatch_size: int,
    hidden_size: int,
    num_heads: int,
    tensor_degree: int,
    sequence_parallel: bool,
    recompute: Literal["none", "selective", "full"],
) -> float:
    """Return the bytes of activations that one GPT layer keeps for its backward pass, per rank.

    16-bit activations, 1-byte dropout masks, separate attention kernels with dropout, no biases, statistics or
    allocator rounding. ``full`` keeps the layer's input only (replicated over the tensor-parallel ranks
    unless sequence-parallel). Source: Korthikanti et al. 2022 (arXiv 2205.05198), table 2.
    """
    plain = float(sequence_length * microbatch_size * hidden_size)
    if recompute == "full":
        return 2 * plain / (tensor_degree if sequence_parallel else 1)
    scores = 0.0 if recompute == "selective" else 5.0 * num_heads * sequence_length / hidden_size
    if sequence_parallel:
        return plain * (34 + scores) / tensor_degree
    return plain * (10 + (24 + scores) / tensor_degree)


def logits_extra_bytes(
    *, sequence_length: int, microbatch_size: int, hidden_size: int, vocab_size: int, tensor_degree: int
) -> float:
    """Return the bytes that the last stage keeps beside its layers, per rank and micro-batch: 4sbh/t (1 + V/h).

    Final norm input, output-layer input (both 16-bit, split over the sequence) and float32 logits (split over the
    vocabulary). Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.3.
    """
    plain = float(sequence_length * microbatch_size * hidden_size)
    return 4 * plain / tensor_degree * (1 + vocab_size / hidden_size)
