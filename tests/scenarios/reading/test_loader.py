"""From a scenario file to the builders' specifications."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from scenarios.errors import ScenarioError
from scenarios.library.shipped import found
from scenarios.reading.clusters.machine import ClusterSpec
from scenarios.reading.clusters.software import software_of
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.reading.schema.cluster import SoftwareSection
from scenarios.reading.sections.section import keys_of
from scenarios.reading.sections.section_reader import read_section
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.training.schema import DenseScenario
from scenarios.workloads.training.starter import STARTER
from scenarios.workloads.workload import Scenario
from sim.training.spec.job import DenseTraining, PipelineSpec, TextbookTraining

LIBRARY = sorted((Path(__file__).parents[3] / "scenarios" / "library").glob("*.yaml"))


def test_quickstart_becomes_specifications(write) -> None:
    """Every key of the first scenario arrives in its specification, defaults filled in as Megatron-LM's."""
    scenario = load_scenario(write())
    job = scenario.job
    assert isinstance(job, DenseTraining)
    assert (scenario.name, scenario.seed) == ("GPT 145.6B on 1,536 A100", 0)
    assert scenario.cluster == ClusterSpec(node="dgx-a100-80g", num_nodes=192, devices_per_node=8)
    assert scenario.cluster.world_size == 1536
    assert (job.model.num_layers, job.model.hidden_size, job.model.num_heads) == (80, 12288, 96)
    assert (job.model.sequence_length, job.model.vocab_size) == (2048, 51200)
    assert (job.model.num_kv_heads, job.model.ffn_hidden_size) == (96, 4 * 12288)
    assert (job.model.tied_embeddings, job.model.attention, job.model.dropout) == (True, "core", 0.1)
    assert (job.training.precision, job.training.recompute, job.training.microbatch_size) == ("fp16", "full", 2)
    assert job.parallel.pipeline == PipelineSpec(degree=8, schedule="interleaved_1f1b", virtual_stages=2)
    assert (job.parallel.tensor.degree, job.parallel.data_degree, job.parallel.zero_stage) == (8, 24, 0)
    assert (job.parallel.bucket_bytes, job.parallel.axis_order) == (0, ("pp", "dp", "cp", "tp"))
    assert job.num_microbatches == 48


def test_textbook_times_are_seconds(write, textbook) -> None:
    """Delays are read with their units; there is no cluster."""
    scenario = load_scenario(write(textbook, ("hop: 0.25 s", "hop: 250 ms"), ("forward: 1 s", "forward: 2e3 us")))
    assert isinstance(scenario.job, TextbookTraining)
    assert scenario.cluster is None
    assert scenario.job.model.forward_s == pytest.approx(2e-3, rel=1e-12)
    assert scenario.job.model.hop_s == pytest.approx(0.25, rel=1e-12)
    assert (scenario.job.num_microbatches, scenario.job.pipeline.degree) == (8, 4)


def test_llama_defaults(write) -> None:
    """A Llama is untied, uses flash attention, has no dropout and as many key heads as query heads."""
    text = "{family: llama, num_layers: 80, hidden_size: 8192, num_heads: 64, sequence_length: 2048, "
    text += "vocab_size: 32000, ffn_hidden_size: 28672}"
    model = load_scenario(write(), [f"model={text}"]).job.model
    assert (model.tied_embeddings, model.attention, model.dropout) == (False, "flash", 0.0)
    assert (model.num_kv_heads, model.rotary_base) == (64, 10000.0)


def test_llama_needs_its_feed_forward_width(write) -> None:
    """What has no published default is required."""
    text = "{family: llama, num_layers: 8, hidden_size: 64, num_heads: 8, sequence_length: 8, vocab_size: 64}"
    with pytest.raises(ScenarioError, match=r"model\.ffn_hidden_size: the key is required"):
        load_scenario(write(), [f"model={text}"])


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "data"])
def test_auto_degree_is_what_the_others_leave(write, axis: str) -> None:
    """Any one degree may be auto, with the same result as the number written out."""
    assert load_scenario(write(), [f"parallel.{axis}.degree=auto"]).job == load_scenario(write()).job


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 6), st.integers(1, 12), st.integers(0, 2))
def test_degrees_fill_the_cluster_or_are_refused(tmp_path_factory, tensor, pipeline, data, open_axis) -> None:
    """With auto the product is always the world size; where it cannot be, the product is worked out in the error."""
    path = tmp_path_factory.mktemp("degrees") / "a.yaml"
    degrees = {"tensor": tensor, "pipeline": pipeline, "data": data}
    written: dict[str, object] = {**degrees, ("tensor", "pipeline", "data")[open_axis]: "auto"}
    path.write_text(f"""
name: a
cluster: {{node: dgx-a100-80g, num_nodes: 6}}
model: {{family: gpt, num_layers: 48, hidden_size: 96, num_heads: 48, sequence_length: 48, vocab_size: 96}}
training: {{global_batch_size: 48, microbatch_size: 1}}
parallel:
  tensor: {{degree: {written["tensor"]}}}
  pipeline: {{degree: {written["pipeline"]}}}
  data: {{degree: {written["data"]}}}
""")
    others = [degree for degree in written.values() if isinstance(degree, int)]
    if 48 % (others[0] * others[1]):
        with pytest.raises(ScenarioError, match=f"= {others[0] * others[1]} does not divide 6 nodes x 8 devices = 48"):
            load_scenario(path)
        return
    parallel = load_scenario(path).job.parallel
    assert parallel.world_size == 48
    resolved = {"tensor": parallel.tensor.degree, "pipeline": parallel.pipeline.degree, "data": parallel.data_degree}
    assert all(written[axis] in {resolved[axis], "auto"} for axis in resolved)


def test_preset_keys_are_overridden_by_further_keys(write) -> None:
    """A preset stands under the model's own keys."""
    scenario = load_scenario(write(), ["model={preset: llama-3-405b, num_layers: 80, tied_embeddings: true}"])
    model = scenario.job.model
    assert (model.family, model.hidden_size, model.num_kv_heads) == ("llama", 16384, 8)
    assert (model.num_layers, model.tied_embeddings, model.rotary_base) == (80, True, 500000.0)


def test_sections_of_a_preset_are_overridden_key_by_key(write) -> None:
    """What is stated of experts and latent attention stands over the preset's; its other keys stay."""
    whole = load_scenario(write(), ["model={preset: deepseek-v2}"]).job.model
    model = load_scenario(
        write(),
        ["model={preset: deepseek-v2}", "model.experts.routing=balanced", "model.latent_attention={q_rank: 768}"],
    ).job.model
    assert whole.experts is not None
    assert whole.latent_attention is not None
    assert model.experts == replace(whole.experts, routing="balanced")
    assert model.latent_attention == replace(whole.latent_attention, q_rank=768)


def test_a_section_that_a_preset_has_not_must_be_whole(write) -> None:
    """Experts of a model without any need all that experts need, and what a preset's rule breaks is told there."""
    with pytest.raises(ScenarioError, match="required and missing") as caught:
        load_scenario(write(), ["model={preset: llama-3-8b, experts: {routing: balanced}}"])
    assert caught.value.key.startswith("model.experts.")
    with pytest.raises(ScenarioError, match="unknown key") as caught:
        load_scenario(write(), ["model.experts.rooting=balanced", "model.preset=mixtral-8x7b"])
    assert caught.value.key in {"model.experts.rooting", "model.family"}


def test_broken_rule_of_a_preset_is_reported_where_it_is_named(write, quickstart) -> None:
    """A rule that a preset's key breaks has the line of the preset, a rule that an own key breaks that key's."""
    text = quickstart.replace(quickstart.splitlines()[3], "model:\n  preset: gpt-3-13b\n  hidden_size: 5140")
    with pytest.raises(ScenarioError, match="does not divide by num_heads 40") as caught:
        load_scenario(write(text))
    assert (caught.value.line, caught.value.key) == (5, "model.num_heads")
    with pytest.raises(ScenarioError, match="unknown key") as caught:
        load_scenario(write(text, ("hidden_size: 5140", "rotary_base: 10000")))
    assert (caught.value.line, caught.value.key) == (6, "model.rotary_base")


def test_part_of_a_node(write) -> None:
    """A job may use some devices of every node; the product is checked against those."""
    scenario = load_scenario(write(), ["cluster={node: dgx-a100-80g, num_nodes: 384, devices_per_node: 4}"])
    assert scenario.cluster == ClusterSpec(node="dgx-a100-80g", num_nodes=384, devices_per_node=4)


def test_later_override_wins_and_keeps_the_others(write) -> None:
    """Overrides are put in from left to right."""
    overrides = ["parallel.data={degree: 2, zero_stage: 1}", "parallel.data.degree=auto", "seed=7"]
    scenario = load_scenario(write(), overrides)
    assert (scenario.job.parallel.data_degree, scenario.job.parallel.zero_stage, scenario.seed) == (24, 1, 7)
    assert scenario.job.parallel.overlap_gradient_sync is True
    assert scenario.overrides == tuple(overrides)


def test_null_takes_a_key_out(write) -> None:
    """The scenario is that of a file without the key, whether the key was there or not."""
    text = write()
    of_file = load_scenario(text, ["training.recompute=none", "parallel.data.degree=24"])
    taken = ["training.recompute=null", "parallel.data.degree=24", "model.rotary=null", "parallel.data.bucket=~"]
    assert load_scenario(text, taken).job == of_file.job


@pytest.mark.parametrize("key", ["sliding_window", "experts.top_k", "sequence_length"])
def test_null_takes_no_key_out_of_a_named_model(write, key: str) -> None:
    """Keys of a preset would stay, and the answer would be that without the option; what the file writes goes."""
    named = ["model={preset: mistral-7b}", "parallel={tensor: {degree: 8}, data: {degree: auto}}"]
    with pytest.raises(ScenarioError, match="not the keys of the model that preset names") as caught:
        load_scenario(write(), [*named, f"model.{key}=null"])
    assert caught.value.key == f"model.{key}"
    assert caught.value.origin.option == f"--set model.{key}=null"
    window, length = "model.sliding_window={size: 64}", "model.sequence_length=128"
    changed = load_scenario(write(), [*named, window, length, "model.sliding_window=null", "model.preset=llama-2-7b"])
    assert (changed.job.model.sequence_length, changed.job.model.sliding_window) == (128, None)
    swapped = ["model.huggingface=null", "model.preset=llama-2-7b"]
    assert load_scenario(write(), [*named, *swapped]).job.model.num_layers == 32


def test_quantities_and_lists_by_override(write) -> None:
    """Override values are YAML: quantities, lists and truth values."""
    stages = "parallel.pipeline={degree: 8, layers_per_stage: [9, 10, 10, 10, 10, 10, 10, 11]}"
    job = load_scenario(write(), [stages, "parallel.data.bucket=25 MiB", "parallel.axis_order=[dp, pp, tp]"]).job
    assert job.parallel.bucket_bytes == 25 * 2**20
    assert job.parallel.pipeline.layers_per_stage == (9, 10, 10, 10, 10, 10, 10, 11)
    assert job.parallel.axis_order == ("dp", "pp", "tp")


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_library_scenario_loads_and_satisfies_the_json_schema(path: Path, schema: dict[str, Any]) -> None:
    """Every scenario that is shipped is valid, for the loader and for an editor with the schema."""
    scenario = load_scenario(path)
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(read_document(path).data)) == []
    assert scenario.source == path


def test_library_has_the_scenarios_that_the_documentation_names() -> None:
    """The names that users are told exist."""
    names = {path.stem for path in LIBRARY}
    assert names >= {"quickstart", "llama3-405b-16384-h100", "tiny-gpt-2x2", "textbook-1f1b", "gpt-1t-3072"}


def test_json_schema_is_a_schema(schema: dict[str, Any]) -> None:
    """The schema itself is valid, and has a description for editors to show."""
    jsonschema.Draft202012Validator.check_schema(schema)
    model = schema["$defs"]["GptModel"]["properties"]
    assert "Megatron" in model["dropout"]["description"]
    assert DenseScenario.__doc__ in schema["$defs"]["DenseScenario"]["description"]


@pytest.mark.parametrize(("old", "new"), [
    ("seed: 0", "seed: '0'"), ("seed: 0", "seed: -1"), ("seed: 0", "sede: 0"), ("seed: 0", "seed: null"),
    ("family: gpt", "family: gtp"), ("num_layers: 80", "num_layers: 80.5"), ("num_layers: 80, ", ""),
    ("degree: 24", "degree: many"), ("degree: 24", "degree: 0"), ("zero_stage: 0", "zero_stage: 4"),
    ("zero_stage: 0", "bucket: 25"), ("zero_stage: 0", "bucket: -1 B"), ("virtual_stages: 2", "axis_order: []"),
    ("  tensor:", "  axis_order: [pp, dp]\n  tensor:"), ("num_layers: 80", "num_layers: 80, ffn_hidden_size: null"),
])  # fmt: skip
def test_json_schema_and_loader_refuse_alike(write, quickstart, schema, old: str, new: str) -> None:
    """What the loader refuses for its shape, an editor marks too."""
    path = write(quickstart, (old, new))
    with pytest.raises(ScenarioError):
        load_scenario(path)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(read_document(path).data))


def test_starter_file_is_a_valid_scenario(write) -> None:
    """What ``simulate new`` writes loads as it is, and with each commented key put in."""
    scenario = load_scenario(write(STARTER))
    assert scenario.cluster.world_size == 16
    commented = [line for line in STARTER.splitlines() if line.lstrip().startswith("# ") and line.startswith("  ")]
    assert len(commented) == 3
    for line in commented:
        uncommented = line.replace("# ", "", 1)
        load_scenario(
            write(STARTER, (line, uncommented)), ["cluster.num_nodes=4"] if "devices_per_node" in line else []
        )


def test_every_key_of_software_reaches_the_framework() -> None:
    """What a scenario says of the framework is what prices are made with, key by key, in SI units."""
    stated = {
        "launch": "1 ms", "native_launch": "2 ms", "task_launch": "3 ms", "graph_launch": "4 ms", "rank_skew": "5 ms",
        "product_slowdown": 1.1, "unaligned_slowdown": 1.2, "memory_bound_slowdown": 1.3, "optimizer_slowdown": 1.4,
        "step_spread": 0.5, "memory_reserve": "6 GiB", "fused_softmax": False, "fused_routing": False,
        "fused_permutation": False,
    }  # fmt: skip
    assert set(stated) == set(keys_of(SoftwareSection))
    seconds = {f"{key}_s": float(text[:-3]) * 1e-3 for key, text in stated.items() if str(text).endswith(" ms")}
    expected = seconds | {key: value for key, value in stated.items() if not isinstance(value, str)}
    expected["memory_reserve_bytes"] = 6 * 2**30
    assert asdict(software_of(read_section(SoftwareSection, stated))) == expected


@pytest.mark.parametrize(
    ("name", "override", "remedy"),
    [
        (
            "clusters/rails",
            "cluster.topology.nodes.nic.bandwidth=1 GB/s",
            r"nodes={base: hgx-h100, nic: \.\.\.}",
        ),
        ("textbook-1f1b", "name.a=1", "set name itself"),
    ],
)
def test_one_key_of_a_catalogues_entry_is_set_above_its_base(name: str, override: str, remedy: str) -> None:
    """A key inside a node or fabric that the scenario only names, or lacks, is refused with the way to set it."""
    with pytest.raises(ScenarioError) as caught:
        of_library(name, override)
    assert re.search(remedy, caught.value.remedy)


def test_a_key_above_its_base_changes_only_that_key() -> None:
    """What the refusal says is accepted, and the other keys are those of the catalogue."""
    network = "cluster.topology={nodes: {base: hgx-h100, nic: {bandwidth: 1 GB/s}}, fabric: {kind: switch}}"
    assert of_library("clusters/rails", network).name == of_library("clusters/rails").name
    assert of_library("quickstart", "cluster.topology.nodes.nic.bandwidth=1 GB/s").cluster.num_nics


def of_library(name: str, *overrides: str) -> Scenario:
    """Return a scenario of the library."""
    return load_scenario(found(Path(name)), overrides)
