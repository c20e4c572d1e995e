"""The scenarios that come with the program: found by name, and each shows what its comment says."""

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.library.shipped import FOLDER, found, scenario_names
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

CLUSTERS = [name for name in scenario_names() if name.startswith("clusters/")]
SHOWING = [name for name in scenario_names() if name.startswith(("clusters/", "jobs/", "services/"))]
SMALL = ("model.num_layers=4",)
TOGETHER = "service={tensor_degree: 4, framework: vllm, batching: prefill_first, max_tokens: 8192}"


def summary_of(name: str, *settings: str) -> dict[str, Any]:
    """Return the summary of a scenario of the folder, with few layers."""
    return simulate(load_scenario(FOLDER / "clusters" / f"{name}.yaml", [*SMALL, *settings])).as_json()


def busy(summary: dict[str, Any]) -> dict[str, float]:
    """Return how busy the busiest link of each kind is."""
    return {entry["kind"]: entry["busiest"]["busy_fraction"] for entry in summary["links"]}


def bound(summary: dict[str, Any], stream: str) -> str:
    """Return the kind of link that a stream's longest kind of op is held back by for most of its time."""
    entry = next(entry for entry in summary["communication"] if entry["stream"] == stream)
    return max(entry["bound_s"], key=entry["bound_s"].get)


def summary_of_kind(name: str, *settings: str) -> dict[str, Any]:
    """Return the summary of a scenario of any kind of work."""
    scenario = load_scenario(FOLDER / f"{name}.yaml", settings)
    summary: dict[str, Any] = scenario.workload.simulate(scenario).as_json()
    return summary


def waits(name: str, *settings: str) -> dict[str, float]:
    """Return what 40 requests of a service waited for, in seconds on average."""
    found: dict[str, float] = summary_of_kind(f"services/{name}", "requests.num_requests=40", *settings)["waits_s"]
    return found


# --- what each one shows -----------------------------------------------------------------------------------


def test_one_switch_has_no_links_beyond_adapters() -> None:
    """NVSwitch inside, adapters outside, and nothing else that could be full."""
    summary = summary_of("one-switch")
    assert set(busy(summary)) == {"nvswitch port", "nic"}
    assert (bound(summary, "tp"), bound(summary, "dp")) == ("nvswitch port", "nic")


def test_oversubscribed_leaves_hold_gradients_back() -> None:
    """Uplinks with a quarter of the bandwidth bind, with all of it adapters do."""
    assert bound(summary_of("leaf-spine"), "dp") == "leaf-spine"
    assert bound(summary_of("leaf-spine", "cluster.topology.fabric.oversubscription=1"), "dp") == "nic"


def test_oversubscribed_pods_hold_gradients_back_at_the_core() -> None:
    """The third level is full, the second is not."""
    summary = summary_of("fat-tree")
    assert bound(summary, "dp") == "spine-core"
    assert busy(summary)["leaf-spine"] < 0.5 * busy(summary)["spine-core"]


def test_rails_need_no_spines() -> None:
    """Gradients stay below the leaf of their rail; a step takes as long as below one switch."""
    summary = summary_of("rails")
    assert "leaf-spine" not in busy(summary)
    assert summary["iteration_time_s"] == pytest.approx(summary_of("one-switch")["iteration_time_s"], rel=0.01)


@pytest.mark.parametrize("name", ["torus-2d", "torus-3d"])
def test_tori_have_one_kind_of_link(name: str) -> None:
    """All traffic is between neighbours, and tensor parallelism without NVLink takes most of the step."""
    summary = summary_of(name)
    assert set(busy(summary)) == {"torus"}
    assert (
        sum(role["exposed_s"]["tp"] * role["num_ranks"] for role in summary["roles"]) / 64
        > 0.5 * summary["iteration_time_s"]
    )


def test_single_cables_between_dragonfly_groups_are_full() -> None:
    """Global links bind, local ones are less busy."""
    summary = summary_of("dragonfly")
    assert bound(summary, "dp") == "between dragonfly groups"
    assert busy(summary)["inside a dragonfly group"] < busy(summary)["between dragonfly groups"]


def test_fewer_adapters_take_longer() -> None:
    """Gradients take twice as long with an adapter per pair, eight times with one per node."""
    per_gpu, per_pair, per_node = (
        next(e for e in summary_of(name)["communication"] if e["stream"] == "dp")["time_s"]
        for name in ("nic-per-gpu", "nic-per-pair", "nic-per-node")
    )
    assert per_pair / per_gpu == pytest.approx(2, rel=0.05)
    assert per_node / per_gpu == pytest.approx(8, rel=0.05)


def test_domains_keep_gradients_off_the_adapters() -> None:
    """Of a ring over 18 GPUs in two racks two hops use adapters; below one switch each of eight does."""
    parts = []
    for name in ("nvl72", "one-switch"):
        carried = {entry["kind"]: entry["bytes"] for entry in summary_of(name)["links"]}
        parts.append(carried["nic"] / carried["nvswitch port"])
    assert parts[0] < 0.2 * parts[1]


def test_fast_nodes_wait_for_slow_ones() -> None:
    """A100 compute for most of the step, H100 for less than half as long."""
    slow, fast = summary_of("mixed-nodes")["roles"]
    assert (slow["first_rank"], fast["first_rank"], slow["num_ranks"], fast["num_ranks"]) == (0, 32, 32, 32)
    assert fast["busy_s"]["compute"] < 0.5 * slow["busy_s"]["compute"]


def test_groups_below_one_pcie_switch_do_not_cross_sockets() -> None:
    """Eight cards need the socket link, four do not, and are faster."""
    eight, four = summary_of("pcie-only"), summary_of("pcie-only", "parallel.tensor.degree=4")
    of_group = [next(e for e in s["communication"] if e["stream"] == "tp")["fullest_fraction"] for s in (eight, four)]
    assert "socket-socket (upi, x-bus)" in of_group[0]
    assert "socket-socket (upi, x-bus)" not in of_group[1]


def test_cube_mesh_is_bound_by_its_nvlinks() -> None:
    """Four GPUs of one side talk over NVLink alone."""
    assert bound(summary_of("dgx-1-cube-mesh"), "tp") == "nvlink"


def test_pairs_stay_on_their_bond() -> None:
    """Two GPUs use NVLink alone; four go over the X-bus, which binds them."""
    assert bound(summary_of("nvlink-pairs"), "tp") == "nvlink"
    four = summary_of("nvlink-pairs", "parallel.tensor.degree=4")
    assert bound(four, "tp") == "socket-socket (upi, x-bus)"


def test_the_weakest_bond_of_a_written_cluster_binds() -> None:
    """The bond with two cables, not four, is the one that a ring waits for."""
    summary = summary_of("written-out")
    assert bound(summary, "tp") == "nvlink"
    weakest = next(entry for entry in summary["links"] if entry["kind"] == "nvlink")["busiest"]["link"]
    assert weakest in {"node 0 gpu 0 to gpu 3", "node 0 gpu 3 to gpu 0"}


def test_prompts_apart_never_hold_up_decoding() -> None:
    """Replicas that only decode never wait for a prompt, and prompts pay with their way over the network."""
    apart, together = (
        waits("llama-3-70b-prompts-apart-16-h100"),
        waits("llama-3-70b-prompts-apart-16-h100", TOGETHER),
    )
    assert (apart["stalled"], together["moved"]) == (0.0, 0.0)
    assert together["stalled"] > 0.0 < apart["moved"]


def test_clover_decodes_sooner_in_small_batches() -> None:
    """With eight users, drafts shorten decoding by a third or more."""
    drafted, plain = (
        waits("llama-3-8b-clover-h100"),
        waits("llama-3-8b-clover-h100", "decoding={method: autoregressive}"),
    )
    assert drafted["decode"] < plain["decode"] / 1.5


def test_groups_keep_more_latents_than_tensor_parallel_ranks_do() -> None:
    """Ranks that share every layer all hold the same latents; groups hold those of their own sequences."""
    name, few = "services/deepseek-v3-experts-16-h200", "requests.num_requests=4"
    groups, ranks = (
        summary_of_kind(name, few, f"service={{{degree}: 16, precision: fp8, batching: chunked}}")
        for degree in ("expert_degree", "tensor_degree")
    )
    assert groups["kv_blocks"] > 10 * ranks["kv_blocks"]
    assert groups["num_finished"] == ranks["num_finished"] == 4


def test_tiresias_lets_short_jobs_pass() -> None:
    """Half of the jobs are done sooner than in order of arrival."""
    tiresias, fifo = (
        summary_of_kind(
            "jobs/tiresias-32-gpus", "jobs.draw={num_jobs: 100, load: 3.0, median_duration: 15 min}", policy
        )
        for policy in ("policy=tiresias", "policy=fifo")
    )
    assert tiresias["median_jct_s"] < fifo["median_jct_s"]


# --- found by name -----------------------------------------------------------------------------------------


def test_every_scenario_of_the_folder_is_tested_here_by_name() -> None:
    """Whoever adds a topology adds what it shows."""
    text = Path(__file__).read_text(encoding="utf-8")
    names = {name.removeprefix("clusters/") for name in CLUSTERS if not name.startswith("clusters/llama3-405b")}
    assert {name for name in names if f'"{name}"' not in text} == set()


@pytest.mark.parametrize("name", SHOWING)
def test_scenarios_say_what_they_show(name: str) -> None:
    """Each begins with a comment of a line or more."""
    assert (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").startswith("# ")


def test_scenarios_are_found_by_name(capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A name or a path of the repository works in any folder, with and without ending; a file there comes first."""
    monkeypatch.chdir(tmp_path)
    for name in ("clusters/rails", "clusters/rails.yaml", "quickstart", "quickstart.yaml"):
        assert found(Path(name)) == FOLDER / f"{name.removesuffix('.yaml')}.yaml"
        assert found(Path("scenarios/library") / name) == found(Path(name))
    with pytest.raises(SystemExit) as caught:
        main(["textbook-1f1b", "--json"])
    assert not caught.value.code
    assert json.loads(capsys.readouterr().out)["iteration_time_s"] == 33
    (tmp_path / "quickstart.yaml").write_text("name: mine")
    assert found(Path("quickstart.yaml")) == Path("quickstart.yaml")
    assert found(Path("no-such-name")) == Path("no-such-name")


def test_list_names_every_scenario(capsys: Any) -> None:
    """``simulate list scenarios`` has each by the name that the command line takes, and what it is about."""
    with pytest.raises(SystemExit):
        main(["list", "scenarios", "--json"])
    records = json.loads(capsys.readouterr().out)["scenarios"]
    assert [record["name"] for record in records] == scenario_names()
    assert {"quickstart", "clusters/rails"} <= {record["name"] for record in records}
    assert all(record["what"] for record in records)
