"""What users build on: commands, options, scenario keys, result keys. A change here is a change for them.

Adding is fine: add it here, to the page of docs that lists its kind and to the CHANGELOG. Renaming or removing breaks
somebody's file.
"""

import importlib.metadata
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest

from scenarios.command_line import COMMANDS, group
from scenarios.library.shipped import FOLDER
from scenarios.recorded.trace_summary import summarise
from scenarios.summaries.as_json import as_json
from scenarios.summaries.planning import PLAN_SCHEMA, LostStrategies, PlanSummary, ProvedPlan, ShiftedPlan
from scenarios.summaries.steps.study import SavingSummary
from scenarios.sweep.run import prepare, run
from scenarios.sweep.settings import read_settings
from scenarios.sweep.workers import local_workers
from scenarios.workloads.job_mix.workload import JobMix
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import json_schema, workload_named
from scenarios.workloads.steps.advising import trials
from scenarios.workloads.steps.advising.advise import advise
from scenarios.workloads.steps.running import simulate
from tests.architecture.long_run_keys import LONG_RUN_KEYS, RELIABILITY, SAVING
from tests.architecture.table_keys import (
    INFERENCE_KEYS,
    INFERENCE_ROW,
    INFERENCE_SUMMARY,
    RECOMMENDATION_KEYS,
    RECOMMENDATION_ROW,
    RECOMMENDATION_STEP,
    RECOMMENDATION_SUMMARY,
    RECOMMENDATION_TABLE,
    SERVER_TIMES,
    SERVICE_KEYS,
    SERVICE_ROW,
    SERVICE_SUMMARY,
)
from tests.traces.kineto_traces import all_reduce, document
from tests.traces.kineto_traces import write as write_trace
from traces.kineto.trace import load
from traces.parquet import write_timeline

OPTIONS = {
    "simulate": {"scenario", "--set", "--out", "--json", "--detail", "--advice", "--fold", "--no-fold"},
    "execute": {
        "scenario",
        "--set",
        "--out",
        "--json",
        "--device",
        "--check",
        "--steps",
        "--calibrate",
        "--timing",
        "--collectives",
        "--timeout",
        "--record-routing",
        "--repeats",
    },
    "sweep": {"scenario", "--set", "--jobs", "--scheduler", "--out", "--resume", "--json"},
    "plan": {
        *("scenario", "--set", "--objective", "--planner", "--proofs", "--num-nodes", "--budget", "--resume", "--jobs"),
        *("--schedules", "--sensitivity", "--scheduler", "--out", "--json"),
    },
    "compare": {"first", "second", "--fail-above", "--steps", "--out", "--json"},
    "trace": {"path", "--steps", "--out", "--json"},
    "replay": {"path", "--set", "--steps", "--out", "--json"},
    "export": {"scenario", "--set", "--out"},
    "fit": {"tables", "--constant", "--every", "--jobs", "--json"},
    "spread": {
        *(
            "profile",
            "tables",
            "--constants",
            "--all-groups",
            "--trace",
            "--recorded-on",
            "--system",
            "--out",
            "--json",
        ),
    },
    "validate": {"tables", "--data", "--markdown", "--json", "--here", "--budget", "--out", "--seed"},
    "schedule": {"scenario", "--set", "--out"},
    "schema": set(),
    "list": {"kinds", "--json"},
    "show": {"cluster", "--set", "--out", "--json"},
    "calibrate": {
        *(
            "--out",
            "--device",
            "--budget",
            "--processes",
            "--node",
            "--seed",
            "--from",
            "--system",
            "--source",
            "--json",
        ),
    },
    "residuals": {"tables", "--node", "--profile", "--system", "--held-out", "--fail-above", "--json"},
    "new": {"path", "--workload"},
}

JOB_MIX_CLUSTER = {f"cluster.{key}" for key in ("types", "placement", "shared_network", "interference", "packing_loss")}
"""Keys of a cluster that only job mixes share."""
KEYS = {
    *("name", "seed", "workload"),
    *("cluster.node", "cluster.num_nodes", "cluster.devices_per_node", "cluster.topology", "cluster.stragglers"),
    *(
        "cluster.profile",
        "cluster.device_price",
        "cluster.network.bandwidth",
        "cluster.network.latency",
        "cluster.oversubscription",
    ),
    *(f"cluster.jitter.{family}" for family in ("gemm", "attention", "elementwise", "optimizer")),
    *(f"network.algorithm.{kind}" for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")),
    *(f"network.algorithm.{kind}" for kind in ("reduce", "all_to_all", "barrier")),
    *(
        f"software.{key}"
        for key in (
            "launch",
            "native_launch",
            "task_launch",
            "graph_launch",
            "rank_skew",
            "step_spread",
            "memory_reserve",
            "fused_softmax",
            "fused_routing",
            "fused_permutation",
        )
    ),
    *(f"software.{key}_slowdown" for key in ("product", "unaligned", "memory_bound", "optimizer")),
    *("model.family", "model.preset", "model.huggingface"),
    *("model.num_layers", "model.hidden_size", "model.num_heads", "model.num_kv_heads", "model.ffn_hidden_size"),
    *("model.sequence_length", "model.vocab_size", "model.tied_embeddings", "model.attention", "model.dropout"),
    "model.causal",
    *("model.rotary_base", "model.forward", "model.backward_input", "model.backward_weight", "model.hop"),
    *("model.head_size", "model.qkv_bias", "model.query_key_norm", "model.gate", "model.post_norms"),
    *("model.scaled_embeddings", "model.score_cap", "model.logit_cap", "model.experts.shared_gate"),
    *(f"model.sliding_window.{key}" for key in ("size", "global_every", "rotary_base")),
    *(f"model.latent_attention.{key}" for key in ("q_rank", "kv_rank", "head_size", "rotary_head_size")),
    "model.latent_attention.value_head_size",
    *(f"model.experts.{key}" for key in ("num_experts", "top_k", "ffn_hidden_size", "shared_ffn_hidden_size")),
    *(f"model.experts.{key}" for key in ("first_dense_layers", "capacity_factor", "balance_loss")),
    "moe.system",
    *(f"model.experts.{key}" for key in ("gate", "num_groups", "top_groups", "capacity_rule", "permutation")),
    *(f"model.experts.{key}" for key in ("bias_update_rate", "remote_share", "rank_load", "dispatch_precision")),
    *(
        f"model.experts.dense_to_sparse.{key}"
        for key in ("start", "end", "decay", "decay_steps", "hard_after", "step", "score_deviation")
    ),
    *("model.experts.dispatch", *(f"model.experts.routing.{key}" for key in ("shares", "trace", "step"))),
    *(f"model.experts.placement.{key}" for key in ("policy", "steps", "slots", "threshold", "every")),
    "model.experts.placement.step_times",
    "model.experts.placement.in_full",
    *(f"model.experts.routing.skew.{key}" for key in ("zipf", "fluctuation", "memory_steps", "swap_probability")),
    *("model.experts.routing.skew.concentration", "model.experts.routing.skew.layer_correlation"),
    *("parallel.expert.degree", "parallel.expert.nodes"),
    *("training.global_batch_size", "training.microbatch_size", "training.num_microbatches", "training.precision"),
    "training.tokens",
    *("training.recompute", "training.checkpoint_early_stop", "training.optimizer", "training.learning_rate"),
    *("training.recompute_num_layers", "training.recompute_method", "training.recompute_layers"),
    *("training.adam_beta1", "training.adam_beta2", "training.adam_epsilon"),
    *("training.fused_gradient_accumulation", "training.low_precision_gradients", "parallel.tensor.overlap_backward"),
    *("training.gradient_placeholders", "training.set_gradients_to_none"),
    *("training.whole_embedding_gradient", "training.prescale_gradients", "training.check_gradients"),
    *("parallel.tensor.method", "parallel.tensor.degree", "parallel.tensor.sequence_parallel"),
    *("parallel.tensor.collective_matmul", "parallel.tensor.mesh", "parallel.tensor.overlap"),
    "parallel.tensor.distribute_saved_activations",
    *(
        "parallel.tensor.axis_order",
        "parallel.tensor.node_block",
        "parallel.tensor.depth_sync",
        "parallel.tensor.save_gathered",
    ),
    *("parallel.context.degree", "parallel.context.method", "parallel.context.layout", "parallel.context.inner_degree"),
    *("parallel.pipeline.degree", "parallel.pipeline.schedule", "parallel.pipeline.virtual_stages"),
    *("parallel.pipeline.layers_per_stage", "parallel.pipeline.scatter_gather", "parallel.pipeline.actions"),
    "parallel.pipeline.recompute_per_stage",
    *("parallel.pipeline.microbatch_group_size", "parallel.pipeline.max_live_microbatches"),
    "parallel.pipeline.kept_for_weights",
    *("training.method", "training.local_update", "model.auxiliary"),
    *("parallel.pipeline.token_slices", "parallel.pipeline.slice_granularity"),
    "parallel.pipeline.optimizer_barrier",
    *("parallel.pipeline.blocking_messages", "parallel.pipeline.overlap_exchanges"),
    *("model.gradient_sync", "parallel.data.deferred_sync"),
    *("parallel.data.degree", "parallel.data.zero_stage", "parallel.data.overlap_gradient_sync"),
    *("parallel.data.overlap_parameter_gather", "parallel.data.bucket", "parallel.axis_order"),
    "parallel.data.delayed_update",
    *("parallel.data.shard_degree", "parallel.data.gradient_sync", "parallel.data.prefetch"),
    *("parallel.data.reshard_after_forward", "parallel.data.local_degree", "parallel.data.offload"),
    *("memory.manager", "memory.gathered", "memory.cached", "memory.chunk", "memory.placement"),
    "memory.gradients_in_chunks",
    *("memory.allocator", "memory.update", "memory.max_staleness"),
    *("memory.offload.parameters", "memory.offload.optimizer"),
    *(f"memory.tiers.nvme.{key}" for key in ("capacity", "bandwidth", "latency", "parameters")),
    *("parallel.data.osdp.memory_limit", "parallel.data.osdp.splits", "parallel.data.osdp.gap"),
    *("parallel.data.osdp.layers", "parallel.data.osdp.ends"),
    *LONG_RUN_KEYS,
    *("jobs.list", "jobs.trace", "jobs.draw.num_jobs", "jobs.draw.load", "jobs.draw.median_duration"),
    *("jobs.ones.num_jobs", "jobs.ones.mean_gap", "policy", "round", "costs.start", "costs.resume", "costs.rescale"),
    *("jobs.ones.batch", "jobs.ones.speed"),
    *("jobs.format", "jobs.trainings", "durations", "past_jobs", "jobs.measured", "jobs.batch", "whole_seconds"),
    "speeds",
    *("policies.optimus.first", "policies.tiresias.order"),
    *(*JOB_MIX_CLUSTER, "jobs.draw.network_fraction", "jobs.draw.speeds", "jobs.draw.gpu_uses"),
    *("policies.gavel.round", "policies.gandiva.slice", "policies.gandiva.pack"),
    *(f"policies.pollux.{key}" for key in ("round", "population_size", "generations", "avoid_interference")),
    *(f"failures.{key}" for key in ("list", "mtbf_per_node", "repair", "save_every")),
    *(f"policies.{key}" for key in ("las.quantum", "themis.lease", "tiresias.thresholds", "tiresias.starvation")),
    "policies.tiresias.past_services",
    *(f"policies.ones.{key}" for key in ("generation", "population_size", "refit_growth", "progress", "growth")),
}

TENSOR_AXIS = {"axis", "degree", "ranks_per_node", "sent_bytes_per_rank", "busy_s", "exposed_s"}

SUMMARY = {
    *("schema", "scenario", "seed", "algorithm", "world_size", "iteration_time_s", "tokens_per_s"),
    *("makespan_s", "max_rank_span_s"),
    *("model_flop_per_s_per_device", "hardware_flop_per_s_per_device", "mfu", "hfu"),
    *("bubble_fraction", "exposed_communication_fraction", "fits_memory", "memory_capacity_bytes", "critical_path_s"),
    "memory_reserve_bytes",
    *(f"resolved.{key}" for key in ("version", "nodes", "devices_per_node", "profile", "profile_basis")),
    *(f"resolved.{key}" for key in ("num_parameters", "sequence_length", "sequence_length_from", "tokens_per_step")),
    *(f"resolved.{key}" for key in ("global_batch_size", "microbatch_size", "num_microbatches", "degrees")),
    *(f"resolved.{key}" for key in ("tensor_method", "tensor_mesh")),
    *(f"resolved.{key}" for key in ("sequence_parallel", "schedule", "precision", "recompute", "zero_stage")),
    *(f"resolved.{key}" for key in ("recompute_num_layers", "recompute_method", "recompute_layers")),
    *("iteration_time_interval_s", "iteration_time_median_s", "iteration_time_interval_method"),
    *("roles.role", "roles.first_rank", "roles.num_ranks", "roles.peak_memory_bytes", "roles.memory_by_kind_bytes"),
    *("roles.memory_capacity_bytes", "roles.peak_host_memory_bytes"),
    *("roles.peak_live_microbatches", "roles.busy_s", "roles.computing_s", "roles.exposed_s"),
    *("links.kind", "links.count", "links.bytes", "links.busy_fraction"),
    *(f"links.busiest.{key}" for key in ("link", "count", "bytes", "busy_fraction", "peak_fraction")),
    *("communication.stream", "communication.kind", "communication.time_s", "communication.latency_s"),
    *("communication.bound_s", "communication.fullest_fraction"),
    *(
        "fold.ranks",
        "fold.simulated",
        "engine.events",
        "engine.wall_time_s",
        "engine.repeated_periods",
        "engine.period_s",
    ),
}

ADVICE = {
    *("level", "best", "reduced.part", "reduced.before_s", "reduced.after_s"),
    *("causes.cause", "causes.fraction", "causes.iteration_time_s", "not_tried.set", "not_tried.predicted_s"),
    *(f"tried.{key}" for key in ("set", "fits_memory", "peak_memory_bytes", "iteration_time_s", "gain", "estimated")),
}

OSDP = {
    *("memory_limit_bytes", "num_operators", "sharded.operator", "sharded.num_slices", "sharded.num_sharded"),
}

TRACE = {
    *("schema", "path", "num_ranks", "world_size", "num_events", "num_activities", "recorded_steps", "steps"),
    *("span_s", "warnings"),
    *("ranks.rank", "ranks.file", "ranks.num_streams", "ranks.num_activities", "ranks.span_s", "ranks.compute_s"),
    *("ranks.communication_s", "ranks.memory_s", "ranks.idle_s", "ranks.overlap_s", "ranks.non_compute_s"),
    *("ranks.exposed_communication_s", "ranks.overlap_fraction", "ranks.peak_allocated_bytes"),
    *("ranks.clock_offset_s", "ranks.clock_drift_ppm", "ranks.residual_s", "ranks.worst_residual_s"),
    *("kernels.name", "kernels.kind", "kernels.count", "kernels.total_s", "kernels.fraction"),
    *("collectives.kind", "collectives.group", "collectives.num_ranks", "collectives.num_seen", "collectives.dtype"),
    *("collectives.bytes", "collectives.count", "collectives.time_s"),
    *("collectives.algorithm_bandwidth_bytes_per_s", "collectives.bus_bandwidth_bytes_per_s"),
    *("clock.num_collectives", "clock.worst_residual_s", "clock.unaligned_ranks"),
}

PLAN = {
    *("schema", "scenario", "objective", "planner", "searched", "memory_room_bytes", "num_strategies"),
    *(f"sensitivity.{key}" for key in ("condition", "set", "iteration_time_s", "kept_iteration_time_s")),
    *("time_disagreement", "memory_disagreement", "lost.reason", "lost.number", "plans.set"),
    *("plans.iteration_time_s", "plans.iteration_time_interval_s", "plans.estimated_time_s"),
    *("plans.peak_memory_bytes", "plans.estimated_memory_bytes", "plans.cost_usd", "plans.tokens_per_s"),
    *("plans.energy_j", "plans.energy_j_per_token"),
    *("plans.cost_usd_per_million_tokens", "plans.indistinguishable", "plans.on_front"),
}
JOB_MIX = {
    *("schema", "scenario", "seed", "policy", "num_gpus", "num_jobs", "mean_jct_s", "median_jct_s", "p90_jct_s"),
    *("p99_jct_s", "mean_queueing_s", "mean_waiting_s", "makespan_s", "utilisation", "useful_fraction"),
    *("num_preemptions", "restart_gpu_s", "idle_gpu_s", "mean_unfairness", "unfair_fraction"),
    *(f"jobs.{key}" for key in ("job_id", "num_gpus", "arrival_s", "first_start_s", "finish_s", "jct_s")),
    *(f"jobs.{key}" for key in ("useful_gpu_s", "restart_gpu_s", "idle_gpu_s", "num_preemptions")),
    *("num_rescales", "jobs.num_rescales", "num_failures", "jobs.num_failures", "lost_gpu_s", "jobs.lost_gpu_s"),
    "down_gpu_s",
    *(f"decisions.{key}" for key in ("at_s", "job_id", "num_gpus", "why")),
}

SWEEP = {
    *("schema", "scenario", "workload", "settings.key", "settings.values", "refused.set", "refused.reason"),
    *("points.set", "points.world_size", "points.iteration_time_s", "points.tokens_per_s"),
    *("points.model_flop_per_s_per_device", "points.mfu", "points.hfu"),
    *("points.bubble_fraction", "points.exposed_communication_fraction", "points.algorithm"),
    *("points.peak_memory_bytes", "points.memory_capacity_bytes", "points.fits_memory"),
    *("points.sent_bytes_per_rank", "points.tensor_sent_bytes_per_rank", "points.pipeline_sent_bytes_per_rank"),
    "points.expert_sent_bytes_per_rank",
    *("points.data_sent_bytes_per_rank", "points.peak_live_microbatches", "points.peak_live_activations"),
    *("points.mean_iteration_time_s", "points.goodput"),
}

COLUMNS = (
    "rank",
    "stream",
    "name",
    "kind",
    "start_s",
    "end_s",
    "microbatch",
    "stage",
    "bytes",
    "flop",
    "group",
    "repeats",
    "period_s",
    "period_microbatches",
    "transfer",
)


def scenario_keys(schema: dict, node: dict, prefix: str = "") -> set[str]:
    """Return the dotted keys that lead to values, over all variants."""
    if "$ref" in node:
        return scenario_keys(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[1]], prefix)
    variants = [v for word in ("anyOf", "oneOf", "allOf") for v in node.get(word, [])]
    found = set[str]().union(*(scenario_keys(schema, v, prefix) for v in variants))
    for name, child in node.get("properties", {}).items():
        found |= scenario_keys(schema, child, f"{prefix}.{name}" if prefix else name)
    is_leaf = not variants and not node.get("properties") and prefix
    return found | ({prefix} if is_leaf else set())


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Return the JSON Schema of scenario files."""
    return json_schema()


def test_commands_and_options_are_the_stated_ones() -> None:
    """Every command has the options that are documented, and no others."""
    context = click.Context(group)
    found = {}
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        found[name] = {word for p in command.params for word in (*p.opts, *p.secondary_opts)}
    assert found == OPTIONS


def test_scenario_keys_are_the_stated_ones(schema: dict[str, Any]) -> None:
    """A scenario file may have these keys, and no others."""
    keys = set[str]().union(
        *(
            scenario_keys(schema, schema["$defs"][variant])
            for variant in ("DenseScenario", "DelayScenario", "JobMixScenario")
        )
    )
    assert {key.removesuffix(".") for key in keys if not _is_whole_section(key, keys)} == KEYS


def test_service_keys_are_the_stated_ones(schema: dict[str, Any]) -> None:
    """A service's file may have these keys beside those of the cluster and the model, and no others."""
    keys = scenario_keys(schema, schema["$defs"]["ServiceScenarioFile"])
    found = {key for key in keys if key.startswith(("requests.", "service.", "decoding."))}
    assert {key.removesuffix(".") for key in found if not _is_whole_section(key, found)} == SERVICE_KEYS


def test_service_results_are_the_stated_ones(tmp_path: Path) -> None:
    """``summary.json`` of a service, and a point of a sweep, have these keys."""
    path = tmp_path / "service.yaml"
    path.write_text(workload_named("service").starter, encoding="utf-8")
    scenario = load_scenario(path, ["requests.num_requests=5"])
    outcome = scenario.workload.simulate(scenario)
    found = set[str]()
    for key, value in outcome.as_json().items():
        found |= {f"{key}.{inner}" for inner in value} if isinstance(value, dict) else {key}
    assert found == SERVICE_SUMMARY
    assert set(as_json(outcome.row())) == SERVICE_ROW


def test_inference_keys_and_results_are_the_stated_ones(schema: dict[str, Any]) -> None:
    """A file of inference has these keys beside those of cluster, model and software; its results have these."""
    keys = scenario_keys(schema, schema["$defs"]["InferenceScenarioFile"])
    found = {key for key in keys if key.startswith(("inference.", "parallel."))}
    assert {key.removesuffix(".") for key in found if not _is_whole_section(key, found)} == INFERENCE_KEYS
    scenario = load_scenario(FOLDER / "inference" / "tiny-experts-2x2.yaml")
    outcome, found = scenario.workload.simulate(scenario), set()
    for key, value in outcome.as_json().items():
        found |= {f"{key}.{inner}" for inner in value} if key == "memory" else {key}
    assert found == INFERENCE_SUMMARY
    assert set(as_json(outcome.row())) == INFERENCE_ROW


def test_keys_of_embedding_tables_are_the_stated_ones(schema: dict[str, Any]) -> None:
    """A file of embedding tables may have these keys, and no others."""
    keys = scenario_keys(schema, schema["$defs"]["RecommendationScenarioFile"])
    machine = {key for key in KEYS - JOB_MIX_CLUSTER if key.startswith(("cluster.", "software."))}
    assert {key for key in keys if not _is_whole_section(key, keys)} == RECOMMENDATION_KEYS | machine
    assert set(schema["$defs"]["TableSection"]["properties"]) == RECOMMENDATION_TABLE


def test_results_of_embedding_tables_are_the_stated_ones(tmp_path: Path) -> None:
    """``summary.json`` of a cache of embedding rows, and a point of a sweep, have these keys."""
    path = tmp_path / "tables.yaml"
    path.write_text(workload_named("recommendation").starter, encoding="utf-8")
    scenario = load_scenario(path, ["trace.num_batches=2", "trace.num_unmeasured=0", "parameter_server={workers: 2}"])
    outcome = scenario.workload.simulate(scenario)
    found = outcome.as_json()
    nested = {f"{outer}.{key}" for outer in ("tables", "over_time") for key in found.pop(outer)[0]}
    nested |= {f"parameter_server.{key}" for key in found["parameter_server"]}
    assert set(found) | nested == RECOMMENDATION_SUMMARY
    assert set(as_json(outcome.row())) == RECOMMENDATION_ROW


def test_results_of_a_timed_step_are_the_stated_ones(tmp_path: Path) -> None:
    """The ``step`` object of ``summary.json``, there only with a model and a machine, has these keys."""
    path = tmp_path / "tables.yaml"
    path.write_text(workload_named("recommendation").starter, encoding="utf-8")
    timed = ["model={name: dcn}", "cluster={node: hgx-h100, num_nodes: 1, devices_per_node: 1}"]
    scenario = load_scenario(path, ["trace={num_batches: 2, num_unmeasured: 0}", *timed])
    assert set(scenario.workload.simulate(scenario).as_json()["step"]) == RECOMMENDATION_STEP
    scenario = load_scenario(
        path, ["trace={num_batches: 2, num_unmeasured: 0}", *timed, "parameter_server={workers: 1}"]
    )
    assert set(scenario.workload.simulate(scenario).as_json()["parameter_server"]["times"]) == SERVER_TIMES


def _is_whole_section(key: str, keys: set[str]) -> bool:
    return any(other.startswith(f"{key}.") for other in keys)


def test_summary_keys_are_the_stated_ones(root: Path) -> None:
    """``summary.json`` has these keys; who reads it may count on them."""
    summary = simulate(load_scenario(FOLDER / "tiny-gpt-2x2.yaml")).as_json()
    nested = {key: summary[key] for key in ("fold", "engine", "resolved")}
    nested |= {key: summary[key][0] for key in ("roles", "links", "communication")}
    found = {key for key in summary if key not in nested}
    nested["links.busiest"] = nested["links"].pop("busiest")
    assert found | {f"{outer}.{key}" for outer, inner in nested.items() for key in inner} == SUMMARY
    assert summary["schema"] == "meshtwin.summary/1"


def test_keys_of_tensor_axes_are_the_stated_ones() -> None:
    """Methods on a mesh have an entry for each of its axes."""
    mesh = ("parallel.data={degree: auto}", "parallel.pipeline={degree: 1}", "training.microbatch_size=4")
    tensor = "parallel.tensor={method: 2d, degree: 4, mesh: [2, 2]}"
    summary = simulate(load_scenario(FOLDER / "tiny-gpt-2x2.yaml", [*mesh, tensor])).as_json()
    assert [set(entry) for entry in summary["tensor_axes"]] == [TENSOR_AXIS, TENSOR_AXIS]


def test_reliability_keys_are_the_stated_ones(root: Path) -> None:
    """The ``reliability`` object of ``summary.json``, there only where a scenario asks for it, has these keys."""
    scenario = load_scenario(FOLDER / "llama3-405b-54-days.yaml", ["reliability.replications=2"])
    reliability = simulate(scenario).as_json()["reliability"]
    found = set()
    for key, value in reliability.items():
        found |= {f"{key}.{inner}" for inner in value} if isinstance(value, dict) else {key}
    assert found == RELIABILITY
    assert set(SavingSummary.__struct_fields__) == SAVING


def test_advice_keys_are_the_stated_ones(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ``advice`` object of ``summary.json``, there where it was sought, has these keys."""
    monkeypatch.setattr(trials, "QUICK_S", 0.3)
    step = simulate(load_scenario(FOLDER / "tiny-gpt-2x2.yaml", ["training.recompute=full"]))
    advice = step.with_advice(advise(step, "quick")).as_json()["advice"]
    found = {"level", "best"} | {f"reduced.{key}" for key in advice["reduced"]}
    found |= {f"{key}.{inner}" for key in ("causes", "tried", "not_tried") for inner in advice[key][0]}
    assert found == ADVICE
    assert advice.keys() == {key.partition(".")[0] for key in ADVICE}
    assert advice["best"].keys() == advice["tried"][0].keys()


def test_routing_keys_are_the_stated_ones(root: Path) -> None:
    """The ``routing`` object of ``summary.json``, there only where a routing is forced, has these keys."""
    experts = "{num_experts: 4, top_k: 1, ffn_hidden_size: 64, dispatch: exact, routing: {skew: {}}}"
    found = simulate(load_scenario(FOLDER / "tiny-gpt-2x2.yaml", [f"model.experts={experts}"])).as_json()["routing"]
    assert found.keys() == {
        "dispatch", "waiting_fraction", "expert_max_over_mean", "rank_max_over_mean", "kept_fraction", "uneven_layer",
        "layer_shares",
    }  # fmt: skip


def test_placement_keys_are_the_stated_ones(root: Path) -> None:
    """The ``placement`` object of ``summary.json``, there only where experts move, has these keys."""
    changes = ["parallel.tensor.degree=1", "parallel.pipeline.degree=1", "parallel.data.degree=4"]
    experts = "{num_experts: 4, top_k: 1, ffn_hidden_size: 64, dispatch: exact, routing: {skew: {}}"
    moving = f"model.experts={experts}, placement: {{policy: flexmoe, steps: 1}}}}"
    scenario = load_scenario(FOLDER / "tiny-gpt-2x2.yaml", [*changes, "parallel.expert.degree=4", moving])
    found = scenario.workload.simulate(scenario).as_json()["placement"]
    assert {*found} - {"steps"} == {"policy", "slots", "threshold", "mean_time_s", "sums_error", "layer"}
    assert found["steps"][0].keys() == {
        "duration_s", "num_copies", "num_arriving", "num_changes", "search_s", "fixed_max_over_mean",
        "rank_max_over_mean", "expert_shares",
    }  # fmt: skip


def test_osdp_keys_are_the_stated_ones(root: Path) -> None:
    """The ``osdp`` object of ``summary.json``, there only where a scenario asks for it, has these keys."""
    changes = ["parallel.tensor.degree=1", "parallel.pipeline.degree=1", "training.precision=fp32"]
    osdp = ["parallel.data={degree: 4, osdp: {memory_limit: 3 MB, splits: [1, 2]}}"]
    found = simulate(load_scenario(FOLDER / "tiny-gpt-2x2.yaml", [*changes, *osdp])).as_json()["osdp"]
    keys = {key for key in found if key != "sharded"} | {f"sharded.{key}" for key in found["sharded"][0]}
    assert keys == OSDP


def test_job_mix_keys_are_the_stated_ones(tmp_path: Path) -> None:
    """``summary.json`` of a job mix has these keys."""
    path = tmp_path / "mix.yaml"
    path.write_text(JobMix.starter, encoding="utf-8")
    scenario = load_scenario(path)
    summary = scenario.workload.simulate(scenario).as_json()
    nested = {key: summary.pop(key)[0] for key in ("jobs", "decisions")}
    assert set(summary) | {f"{outer}.{key}" for outer, inner in nested.items() for key in inner} == JOB_MIX
    assert summary["schema"] == "meshtwin.job_mix/1"


def test_trace_keys_are_the_stated_ones(tmp_path: Path) -> None:
    """``simulate trace --json`` has these keys."""
    path = write_trace(tmp_path / "rank0.json", document([all_reduce(0, 10, correlation=1)], world_size=2))
    summary = as_json(summarise(path, "all", load(path)))
    assert summary["schema"] == "meshtwin.trace/1"
    nested = {"clock": summary["clock"]} | {key: summary[key][0] for key in ("ranks", "kernels", "collectives")}
    found = {key for key in summary if key not in nested}
    assert found | {f"{outer}.{key}" for outer, inner in nested.items() for key in inner} == TRACE


def test_sweep_keys_are_the_stated_ones(root: Path) -> None:
    """``sweep.json`` has these keys."""
    settings = read_settings(["parallel.pipeline.schedule=1f1b,interleaved_1f1b"])
    job = prepare(FOLDER / "tiny-gpt-2x2.yaml", settings)
    summary = run(job, local_workers, 1, tick=lambda: None).as_json()
    found = set()
    for key, value in summary.items():
        found |= {f"{key}.{inner}" for inner in value[0]} if isinstance(value, list) else {key}
    assert found == SWEEP
    assert summary["schema"] == "meshtwin.sweep/1"


def test_plan_keys_are_the_stated_ones() -> None:
    """``plan.json`` has these keys."""
    lists = {"plans": ProvedPlan, "lost": LostStrategies, "sensitivity": ShiftedPlan}
    found = set(PlanSummary.__struct_fields__) - lists.keys()
    found |= {f"{name}.{field}" for name, kind in lists.items() for field in kind.__struct_fields__}
    assert found == PLAN
    assert PLAN_SCHEMA == "meshtwin.plan/1"


def test_timeline_columns_are_the_stated_ones(root: Path, tmp_path: Path) -> None:
    """``timeline.parquet`` has these columns in this order."""
    path = tmp_path / "timeline.parquet"
    write_timeline(simulate(load_scenario(FOLDER / "textbook-1f1b.yaml")).timeline, path)
    assert tuple(pq.read_schema(path).names) == COLUMNS


def test_every_key_and_option_is_documented(manual: str) -> None:
    """Whatever may be written or comes out is named in the README or a page of docs."""
    service = SERVICE_KEYS | SERVICE_SUMMARY | SERVICE_ROW
    tables = RECOMMENDATION_KEYS | RECOMMENDATION_TABLE | RECOMMENDATION_SUMMARY | RECOMMENDATION_ROW
    tables |= RECOMMENDATION_STEP | INFERENCE_KEYS | INFERENCE_SUMMARY | INFERENCE_ROW
    words = {
        f"`{key.rsplit('.', 1)[-1]}`"
        for key in KEYS
        | service
        | tables
        | SUMMARY
        | TENSOR_AXIS
        | RELIABILITY
        | ADVICE
        | OSDP
        | JOB_MIX
        | PLAN
        | SWEEP
        | TRACE
    }
    words |= {f"`{column}`" for column in COLUMNS}
    words |= {option for options in OPTIONS.values() for option in options if option.startswith("--")}
    assert sorted(word for word in words if word not in manual) == []


def test_command_is_installed() -> None:
    """The package installs one command, ``simulate``."""
    scripts = importlib.metadata.distribution("meshtwin").entry_points.select(group="console_scripts")
    assert {script.name: script.value for script in scripts} == {"simulate": "scenarios.cli:main"}
