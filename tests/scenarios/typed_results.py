"""Results as tests want them: plausible values everywhere, but for those that a test names."""

from typing import Any

from scenarios.summaries.comparing.comparison import AlignedOps, ComparisonSummary, OpShare
from scenarios.summaries.measured.execution import ExecutedRole, ExecutionSummary
from scenarios.summaries.steps.step import EngineWork, Folded, RoleSummary, StepSummary


def role_of(**changes: Any) -> RoleSummary:
    """Return a role of one rank that holds nothing and does nothing."""
    values: dict[str, Any] = {
        "role": "", "first_rank": 0, "num_ranks": 1, "peak_memory_bytes": 0, "memory_capacity_bytes": None,
        "memory_by_kind_bytes": {}, "peak_host_memory_bytes": 0, "peak_live_microbatches": 1.0,
        "busy_s": {}, "exposed_s": {}, "computing_s": {},
    }  # fmt: skip
    return RoleSummary(**{**values, **changes})


def step_of(**changes: Any) -> StepSummary:
    """Return a step of one second on one rank, on no hardware."""
    values: dict[str, Any] = {
        "scenario": "a step", "seed": 0, "algorithm": "backpropagation", "world_size": 1, "iteration_time_s": 1.0,
        "iteration_time_interval_s": None, "iteration_time_median_s": None, "iteration_time_interval_method": None,
        "makespan_s": 1.0, "max_rank_span_s": 1.0, "tokens_per_s": None, "model_flop_per_s_per_device": None,
        "hardware_flop_per_s_per_device": None, "mfu": None, "hfu": None, "bubble_fraction": 0.0,
        "exposed_communication_fraction": 0.0, "critical_path_s": {}, "fits_memory": None,
        "memory_capacity_bytes": None, "roles": (role_of(),), "links": (), "communication": (),
        "fold": Folded(ranks=1, simulated=1), "engine": EngineWork(events=1, wall_time_s=0.1),
    }  # fmt: skip
    return StepSummary(**{**values, **changes})


def executed_role(**changes: Any) -> ExecutedRole:
    """Return a role of one rank that holds one byte."""
    values: dict[str, Any] = {
        "role": "", "num_ranks": 1, "peak_memory_bytes": 1, "simulated_peak_memory_bytes": 1,
        "memory_by_kind_bytes": {}, "peak_host_memory_bytes": 0,
    }  # fmt: skip
    return ExecutedRole(**{**values, **changes})


def execution_of(**changes: Any) -> ExecutionSummary:
    """Return an execution of a millisecond on one rank, of which nothing was compared."""
    values: dict[str, Any] = {
        "scenario": "s", "seed": 0, "algorithm": "backpropagation", "world_size": 1, "iteration_time_s": 1e-3,
        "iteration_times_s": (1e-3,), "simulated_iteration_time_s": 1e-3, "simulated_iteration_time_median_s": None,
        "simulated_iteration_time_interval_s": None, "roles": (executed_role(),),
        "same_peak_memory": True, "collectives": "native", "passed": True,
    }  # fmt: skip
    return ExecutionSummary(**{**values, **changes})


def share_of(**changes: Any) -> OpShare:
    """Return an op that takes no time on either side."""
    values: dict[str, Any] = {
        "op": "op", "first_count": 0, "second_count": 0, "first_s": 0.0, "second_s": 0.0, "difference_s": 0.0,
        "share_fraction": 0.0,
    }  # fmt: skip
    return OpShare(**{**values, **changes})


def comparison_of(**changes: Any) -> ComparisonSummary:
    """Return a comparison of a step of one second with one of two seconds, of three ops each."""
    values: dict[str, Any] = {
        "names": ("first", "second"), "notes": ("", ""), "first_s": 1.0, "second_s": 2.0, "makespan_error": -0.5,
        "first_ops": 3,
        "second_ops": 3, "aligned": AlignedOps(by_name=3, by_kind=0, first_alone=0, second_alone=0), "same_work": True,
        "mismatches": {}, "kind_error": {"compute": -0.5}, "stream_error": {"compute": -0.5}, "step_time": (),
        "critical_path": (), "rows": (), "others": share_of(op="all other ops"), "idle": share_of(op="idle"),
        "explanation": None, "warnings": (), "passed": True,
    }  # fmt: skip
    return ComparisonSummary(**{**values, **changes})
