"""Kernels of experts with unequal numbers of rows."""

from costmodels.kernels import GemmShape, Work
from tests.costmodels.test_kernel import COUNTS, ROWS, C, E, F, H, f32, t, work_of


def test_products_of_unequal_groups_are_those_of_groups_with_rows() -> None:
    """FLOP are those of all rows; weights of groups without rows are not read; a call without rows does nothing."""
    x, w = t(1, C, H), t(E, H, F)
    work = work_of("ragged_matmul", [x, w, COUNTS], ROWS)
    assert work.flop == work.executed_flop == 2.0 * C * H * F
    assert work.gemm == GemmShape(5, F, H, 2)
    assert work.bytes_read == x.num_bytes + w.num_bytes // 2 + COUNTS.num_bytes
    backward = work_of("ragged_matmul_weight_gradient", [x, t(1, C, F), COUNTS], ROWS)
    assert backward.flop == work.flop
    assert backward.gemm == GemmShape(H, F, 5, 2)
    none, empty = t(1, 0, H), {"rows": (0, 0, 0, 0)}
    assert work_of("ragged_matmul", [none, w, COUNTS], empty) == Work(0.0, 0.0, 0, 0)
    idle = work_of("ragged_matmul_weight_gradient", [none, t(1, 0, F), COUNTS, f32(E, H, F)], empty)
    assert (idle.flop, idle.num_bytes) == (0.0, 0)
