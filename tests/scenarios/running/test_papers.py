"""Scenarios of publications: each shows what its publication found, as far as its comment says."""

import pytest

from scenarios.library.shipped import FOLDER
from scenarios.summaries.steps.mean_rank import mean_exposed_s
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import run_step, simulate
from scenarios.workloads.training.scenario import TrainingScenario
from sim.engine.running.run import SimulatedRun
from sim.training.spec.job import TrainingJob

OVERLAP = "parallel.data.overlap_gradient_sync=true"
SCHEDULE = "parallel.pipeline.schedule"


def summary_of(name: str, *settings: str) -> StepSummary:
    """Return the summary of a scenario of the folder."""
    return simulate(load_scenario(FOLDER / "papers" / f"{name}.yaml", settings)).summary


def run_of(name: str, *settings: str) -> SimulatedRun:
    """Return the run of a scenario of the folder, without a summary."""
    return run_step(load_scenario(FOLDER / "papers" / f"{name}.yaml", settings))


def speedup(slow: StepSummary | SimulatedRun, fast: StepSummary | SimulatedRun) -> float:
    """Return by which part the second step's throughput is more than the first's."""
    ratio: float = slow.iteration_time_s / fast.iteration_time_s
    return ratio - 1.0


def test_fold3d_hides_the_gradients_that_all_gpus_wait_for() -> None:
    """Blocking synchronisation idles all for 44 %; AIAO gains what Fold3D reports, and more than what it builds on."""
    blocking = summary_of("fold3d-gpt-6b")
    waiting = mean_exposed_s(blocking.roles)["dp"] / blocking.iteration_time_s
    assert waiting == pytest.approx(0.44, abs=0.03)
    overlapping = speedup(blocking, run_of("fold3d-gpt-6b", OVERLAP))
    breadth_first = speedup(blocking, run_of("fold3d-gpt-6b", OVERLAP, f"{SCHEDULE}=breadth_first"))
    all_in_all_out = speedup(blocking, run_of("fold3d-gpt-6b", OVERLAP, f"{SCHEDULE}=aiao"))
    assert 0.0 < overlapping < breadth_first < all_in_all_out
    assert 0.252 < all_in_all_out < 0.421


def test_deferring_what_would_hide_anyway_costs_updates_between_forwards() -> None:
    """With 16 micro-batches AIAO is slower than breadth-first by the updates on its path; undeferred it is not."""
    keys = (OVERLAP, "training.global_batch_size=256")
    breadth_first = summary_of("fold3d-gpt-6b", *keys, f"{SCHEDULE}=breadth_first")
    deferring = summary_of("fold3d-gpt-6b", *keys, f"{SCHEDULE}=aiao")
    at_once = run_of("fold3d-gpt-6b", *keys, f"{SCHEDULE}=aiao", "parallel.data.deferred_sync=0")
    slower_s = deferring.iteration_time_s - breadth_first.iteration_time_s
    updates_s = deferring.critical_path_s["optimizer"] - breadth_first.critical_path_s["optimizer"]
    assert slower_s > 0.0
    assert 0.5 * slower_s < updates_s < 1.2 * slower_s
    assert at_once.iteration_time_s == pytest.approx(breadth_first.iteration_time_s, rel=1e-6)


def peak_bytes(summary: StepSummary, *kinds: str) -> float:
    """Return what these kinds of buffers take at the peak of the first role."""
    return float(sum(summary.roles[0].memory_by_kind_bytes[kind] for kind in kinds))


def test_interleaving_gains_most_with_few_micro_batches() -> None:
    """Two virtual stages per rank gain more than SC21's 10 % at small batches, and less with every larger one."""
    interleaved = (f"{SCHEDULE}=interleaved_1f1b", "parallel.pipeline.virtual_stages=2")
    gains = []
    for batch in (12, 24, 60):
        size = f"training.global_batch_size={batch}"
        plain = run_of("megatron-interleaving-175b", size)
        gains.append(speedup(plain, run_of("megatron-interleaving-175b", size, *interleaved)))
    assert gains[0] > gains[1] > 0.1 > gains[2] > 0.05


def test_zero_stages_hold_what_their_paper_says() -> None:
    """120 and 31.4 GB of model states with stages 0 and 1, 16.6 GB and two small buckets with stage 2; stage 3 fits
    120 GB's model in a thirtieth of it.
    """
    states = ("parameter", "gradient", "optimizer")
    replicated, first, third = (summary_of("zero-gpt-7.5b", f"parallel.data.zero_stage={n}") for n in (0, 1, 3))
    assert peak_bytes(replicated, *states) == pytest.approx(120e9, rel=0.01)
    assert peak_bytes(first, *states) == pytest.approx(31.4e9, rel=0.01)
    assert 1.88e9 < peak_bytes(third, *states) < 120e9 / 30
    second = summary_of("zero-gpt-7.5b", "parallel.data.zero_stage=2", "parallel.data.bucket=50 MB")
    assert 16.6e9 < peak_bytes(second, *states) < 16.6e9 + 1e9
    assert not replicated.fits_memory
    assert first.fits_memory
    assert first.iteration_time_s < replicated.iteration_time_s


def test_offloading_the_optimizer_fits_ten_times_the_parameters() -> None:
    """13 billion parameters fit on a V100 whose host has the optimizer, 10 billion not without; copies cost little."""
    alone = ("training.global_batch_size=1", "training.microbatch_size=1")
    assert summary_of("zero-offload-gpt-10b", "model.num_layers=65", *alone).fits_memory
    assert not summary_of("zero-offload-gpt-10b", "parallel.data={degree: auto}", *alone).fits_memory
    tutorial = summary_of("zero-offload-gpt-10b")
    assert tutorial.fits_memory
    assert tutorial.host_memory.peak_bytes == pytest.approx(16 * 10.28e9, rel=0.01)
    assert tutorial.model_flop_per_s_per_device > 40e12
    waiting = mean_exposed_s(tutorial.roles)
    assert 0.1 < sum(waiting[stream] for stream in ("d2h", "h2d", "host")) / tutorial.iteration_time_s < 0.2


def test_local_updates_trade_the_bubble_for_heads() -> None:
    """Greedy updates keep one micro-batch and wait less than 1F1B; overlapping ones keep two and compute more."""
    local = "training.method=local"
    backprop = summary_of("local-updates-gpt-2.7b")
    greedy = summary_of("local-updates-gpt-2.7b", local)
    overlapping = summary_of("local-updates-gpt-2.7b", local, "training.local_update=overlapping")
    assert [summary.roles[0].peak_live_microbatches for summary in (backprop, greedy, overlapping)] == [8, 1, 2]
    assert greedy.bubble_fraction < backprop.bubble_fraction / 2
    assert greedy.max_rank_span_s < 0.8 * backprop.max_rank_span_s
    assert greedy.max_rank_span_s < overlapping.max_rank_span_s


def test_osdp_gains_what_the_traffic_allows() -> None:
    """FSDP's memory is the published one; OSDP uses what is left, for a gain within 20 % of the published one.

    A parameter moves three times where it is sharded, twice where it is not: that bounds the gain.
    """
    osdp = "parallel.data={degree: auto, osdp: {memory_limit: 8192 MiB, splits: [1, 4]}}"
    sharded, chosen = summary_of("osdp-gpt-2"), summary_of("osdp-gpt-2", osdp)
    assert sharded.roles[0].peak_memory_bytes == pytest.approx(5656.91 * 2**20, rel=0.02)
    assert 0.95 < chosen.roles[0].peak_memory_bytes / (8192 * 2**20) <= 1.0
    sizes = {"qkv": 3, "projection": 1, "fc1": 4, "fc2": 4}
    entries = [entry for entry in chosen.osdp.sharded if entry.operator.startswith("layer")]
    moved = [sizes[e.operator.split(".")[-1]] * e.num_sharded / e.num_slices for e in entries]
    bound = 3 / (2 + sum(moved) / (48 * sum(sizes.values())))
    ratio = 1.0 + speedup(sharded, chosen)
    assert 1.03 < ratio <= bound + 0.005
    assert ratio == pytest.approx(1.216, rel=0.2)


def test_osdp_in_slices_fits_twice_the_sequences() -> None:
    """Within 16 GiB sliced operators leave room for two sequences, which move no more than one.

    Against layers of which none is gathered ahead, as memory suggests, the gain is within 20 % of the published one.
    """
    osdp = "parallel.data={degree: auto, osdp: {memory_limit: 16384 MiB, splits: [1, 4]}}"
    sharded = summary_of("osdp-opt-30b")
    chosen = summary_of("osdp-opt-30b", osdp, "training.global_batch_size=16", "training.microbatch_size=2")
    assert chosen.roles[0].peak_memory_bytes <= 16 * 2**30 < sharded.roles[0].peak_memory_bytes
    assert 1.8 < chosen.tokens_per_s / sharded.tokens_per_s <= 2.0
    one_layer = summary_of("osdp-opt-30b", "parallel.data.prefetch=0")
    assert one_layer.roles[0].peak_memory_bytes < sharded.roles[0].peak_memory_bytes
    assert chosen.tokens_per_s / one_layer.tokens_per_s == pytest.approx(1261.98 / 453.18, rel=0.2)


def test_a_cube_is_fast_where_a_node_holds_the_axes_of_activations() -> None:
    """3D's step takes as long as its comment says, 147 s with weights inside nodes and 94 s with activations; why."""
    squares, weights = summary_of("bian-3d-64-v100"), summary_of("bian-3d-64-v100", "parallel.tensor.node_block=[]")
    assert squares.iteration_time_s == pytest.approx(93.8, rel=0.01)
    assert weights.iteration_time_s == pytest.approx(147.5, rel=0.01)
    inside = [{entry.axis: entry.ranks_per_node for entry in found.tensor_axes or ()} for found in (squares, weights)]
    assert inside == [
        {"tp_output": 2, "tp_input": 2, "tp_weight": 1}, {"tp_output": 1, "tp_input": 1, "tp_weight": 4},
    ]  # fmt: skip
    for found in (squares, weights):
        sent = {entry.axis: entry.sent_bytes_per_rank for entry in found.tensor_axes or ()}
        assert sent["tp_weight"] < min(sent["tp_output"], sent["tp_input"])


def test_state_that_stays_and_early_updates_nearly_double_the_throughput_of_a_window() -> None:
    """Against a prefetch window, 29 billion parameters gain 97 % with 28 GB cached, and 21 % without a cache.

    Angel-PTM's abstract has up to 88.9 % against existing systems. The 28 GB were chosen with this result in sight, so
    the test holds figures of the scenario's comment and validates nothing.
    """
    window, uncached = '{"manager": "deepspeed"}', '{"manager": "angel_ptm", "gathered": "5 GB"}'
    name = "angel-ptm-gpt-29b-8-a100"
    whole, without, ahead = (summary_of(name, *set_) for set_ in ((), (f"memory={uncached}",), (f"memory={window}",)))
    assert whole.fits_memory
    assert ahead.iteration_time_s / whole.iteration_time_s == pytest.approx(1.97, abs=0.1)
    assert ahead.iteration_time_s / without.iteration_time_s == pytest.approx(1.21, abs=0.1)


def test_a_setting_of_colossal_ai_reaches_its_headline() -> None:
    """2D on 16 GPUs is 2.77 times as fast as 1D; the batch was chosen with 2.76 in sight, so nothing is validated."""
    name, baseline = "colossal-ai-2d-16-a100", "parallel.tensor={method: 1d, degree: 16}"
    assert 1.0 + speedup(run_of(name, baseline), run_of(name)) == pytest.approx(2.77, abs=0.05)


def test_eighteen_billion_parameters_fit_on_one_gpu_with_their_state_on_its_host() -> None:
    """The host has 16 bytes per parameter; on a smaller device fewer chunks stay, and the step takes longer."""
    name = "colossal-ai-gemini-gpt-18b-1-a100"
    large, small = summary_of(name), summary_of(name, "cluster.node=dgx-a100-40g")
    assert large.fits_memory
    assert small.fits_memory
    assert large.host_memory is not None
    assert large.host_memory.peak_bytes == pytest.approx(16 * 18.14e9, rel=0.01)
    assert small.roles[0].peak_memory_bytes < 0.9 * 40 * 2**30 < large.roles[0].peak_memory_bytes
    assert small.iteration_time_s > large.iteration_time_s


def test_deepseek_v3_is_the_model_and_the_batch_of_its_report() -> None:
    """671 billion parameters, 120 micro-batches of a sequence for each of 128 replicas, operands of eight bits."""
    scenario = load_scenario(FOLDER / "papers" / "deepseek-v3-2048-h800.yaml")
    assert isinstance(scenario, TrainingScenario)
    job = scenario.job
    assert isinstance(job, TrainingJob)
    assert job.model.num_parameters == pytest.approx(671e9, rel=1e-3)
    assert job.num_microbatches * job.parallel.data_degree == 15360
    assert job.training.types.product.startswith("float8")
    assert (job.parallel.expert_degree, job.parallel.expert_nodes) == (64, 8)
    assert job.routing is not None
    assert job.routing.counts.min() == job.routing.counts.max() == 128
