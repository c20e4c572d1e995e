"""Kernels with operands of eight bits."""

from tests.costmodels.test_kernel import B, F, H, S, X, e4m3, f32, t, work_of


def test_a_product_in_eight_bits_does_the_same_work_on_half_the_bytes() -> None:
    """As much arithmetic as in 16 bits; operands take half the bytes, and what is made as many."""
    attributes = {"dtype": "float16"}
    plain = work_of("matmul", [X, t(H, F)])
    narrow = work_of("float8_matmul", [e4m3(S, B, H), f32(1), e4m3(H, F), f32(1)], attributes)
    assert (narrow.flop, narrow.gemm, narrow.bytes_written) == (plain.flop, plain.gemm, plain.bytes_written)
    assert 2 * narrow.bytes_read == plain.bytes_read


def test_a_cast_reads_16_bits_and_writes_two_copies_of_8() -> None:
    """The tensor in two orders: 4 bytes per element in all, and the scale's."""
    work = work_of("cast_float8", [X], {"dtype": "float8_e4m3fn", "copies": 2})
    assert work.num_bytes == 4 * X.num_elements + 4
