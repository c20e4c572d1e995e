"""Good inputs of every reader, small enough to be read a thousand times."""

import gzip
import io
import json
import math
import re
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import yaml

from costmodels.profile import packaged_entry
from scenarios.sweep.kept import KEPT, kept_points
from scenarios.sweep.run import prepare, run
from scenarios.sweep.settings import read_settings
from scenarios.sweep.workers import local_workers
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate
from sim.moe.recorded import RecordedRouting
from sim.moe.routing import RoutingShape
from sim.moe.routing_file import write_routing
from sim.moe.skew import Skew
from sim.plan.session.observations import RecordedStep, Recording
from sim.plan.session.protocol import Seen
from tests.fuzz.mutate import Case
from tests.laws.test_kinds import FILES
from tests.traces.kineto_traces import SEND_RECV, activity, all_reduce, annotation, document, launch, memory
from tests.traces.test_job_logs import ALIBABA, ONES, PHILLY, POLLUX
from tests.traces.test_jobs import JOBS
from tests.traces.test_lookups import CRITEO_LINES, LOOKUPS
from tests.traces.test_measured_trainings import EPOCHS, SIDECAR
from tests.traces.test_measured_trainings import STEPS as MEASURED_STEPS
from tests.traces.test_requests import AZURE, MOONCAKE
from traces.chakra.file import write_trace
from traces.chakra.node import ChakraTrace, Node

SCENARIOS: Final = Path(__file__).parents[2] / "scenarios" / "library"
PIPELINE: Final = SCENARIOS / "textbook-1f1b.yaml"
SWEPT: Final = ("--set", "training.num_microbatches=2,3", "--set", "parallel.pipeline.schedule=1f1b,interleaved_1f1b")
"""A sweep of four points, of which the simulation or the rules refuse some."""
MOST_NODES: Final = 72
CATALOGUE: Final = Path(__file__).parents[2] / "costmodels" / "catalogue"

DENSE: Final = """\
name: small
seed: 0
cluster: {node: hgx-h100, num_nodes: 1, devices_per_node: 4}
model: {family: gpt, num_layers: 2, hidden_size: 64, num_heads: 4, sequence_length: 32, vocab_size: 128}
training: {global_batch_size: 8, microbatch_size: 2, precision: bf16, recompute: none, optimizer: adam}
parallel:
  tensor: {method: 1d, degree: 2, sequence_parallel: false}
  pipeline: {degree: 2, schedule: 1f1b, virtual_stages: 1}
  data: {degree: 1, zero_stage: 0, overlap_gradient_sync: true, bucket: 25 MiB}
"""
MIXTURE: Final = """\
name: experts
cluster:
  num_nodes: 2
  topology: {nodes: hgx-h100, fabric: {kind: rail-optimised, nodes_per_leaf: 2, spines: 2, uplink: {latency: 0.2 us}}}
  stragglers: [{device: 3, slowdown: 1.5}]
  jitter: {gemm: 0.01}
model:
  family: llama
  num_layers: 2
  hidden_size: 64
  num_heads: 4
  num_kv_heads: 2
  ffn_hidden_size: 128
  sequence_length: 64
  vocab_size: 128
  experts: {num_experts: 8, top_k: 2, ffn_hidden_size: 64, capacity_factor: 1.25}
training: {global_batch_size: 16, microbatch_size: 1, recompute: selective}
network: {algorithm: {all_reduce: ring}}
software: {launch: 5 us, task_launch: 20 us, rank_skew: 3 us, product_slowdown: 1.1}
parallel:
  axis_order: [pp, dp, tp]
  tensor: {degree: 2, sequence_parallel: true}
  expert: {degree: 2}
  data: {degree: auto, zero_stage: 1}
reliability:
  steps: 1000
  mtbf_per_device: 1000 h
  mtbf_of_job: 500 h
  checkpoint: {save: 10 s, stall: 1 s, interval: auto}
  spares: {num_nodes: 1, repair: 24 h}
  restart: 5 min
  replications: 4
"""
SHARDED: Final = """\
name: sharded
cluster: {node: dgx-a100-80g, num_nodes: 1}
model: {family: llama, num_layers: 2, hidden_size: 64, num_heads: 8, ffn_hidden_size: 128, sequence_length: 64,
  vocab_size: 128, latent_attention: {kv_rank: 16, head_size: 8, rotary_head_size: 4, value_head_size: 8}}
training: {global_batch_size: 8, microbatch_size: 1}
parallel:
  data: {degree: 8, zero_stage: 3, shard_degree: 4, prefetch: 1, reshard_after_forward: true}
"""
GEMMA: Final = SHARDED.replace(
    "latent_attention: {kv_rank: 16, head_size: 8, rotary_head_size: 4, value_head_size: 8}",
    "head_size: 16, gate: gelu, query_key_norm: true, sliding_window: {size: 16, global_every: 2, rotary_base: 500}, "
    "attention: core, score_cap: 50, logit_cap: 30, post_norms: true, scaled_embeddings: true, qkv_bias: false",
)
SHARED: Final = SHARDED.replace(
    "data: {degree: 8, zero_stage: 3, shard_degree: 4, prefetch: 1, reshard_after_forward: true}",
    "context: {degree: 2, method: p2p}\n  data: {degree: 4, zero_stage: 1}",
)
TEXTBOOK: Final = """\
name: textbook
model: {family: delay, forward: 1 s, backward_input: 1 s, backward_weight: 1 s, hop: 0.25 s, gradient_sync: 0.5 s}
training: {num_microbatches: 4}
parallel: {pipeline: {degree: 2, schedule: 1f1b, virtual_stages: 1}, data: {overlap_gradient_sync: true}}
"""
CUSTOM: Final = TEXTBOOK.replace("schedule: 1f1b, virtual_stages: 1", "schedule: custom, actions: actions.csv")
ACTIONS: Final = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
PROFILED: Final = DENSE.replace("devices_per_node: 4", "devices_per_node: 4, profile: profile.yaml")
FROM_CONFIG: Final = DENSE.replace(
    "{family: gpt, num_layers: 2, hidden_size: 64, num_heads: 4, sequence_length: 32, vocab_size: 128}",
    "{huggingface: config.json, num_layers: 2, sequence_length: 32}",
)
CONFIGS: Final[tuple[dict[str, Any], ...]] = (
    {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "rope_scaling": None, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "vocab_size": 128, "hidden_act": "silu", "rope_theta": 500000.0, "tie_word_embeddings": False,
        "attention_bias": False,
    },
    {
        "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 128,
        "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "n_inner": None,
    },
    {
        "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "vocab_size": 128,
        "hidden_act": "silu", "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
        "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    },
)  # fmt: skip
STEPS: Final = """\
citation: Nobody
source: Arithmetic
licence: facts
row: [row, num_layers]
group: half
where: {equal: {half: [fitted, held]}, holds: num_layers > 0}
base:
  name: Small
  cluster: {node: dgx-a100-80g, num_nodes: 1, devices_per_node: 1}
  model: {family: gpt, num_layers: 2, hidden_size: 64, num_heads: 4, sequence_length: 32, vocab_size: 128}
  training: {global_batch_size: 4, microbatch_size: 1, precision: fp16}
  software: {launch: 100 us, native_launch: 50 us}
columns: {model.num_layers: num_layers, training.microbatch_size: 1 if num_layers > 1 else microbatch_size}
measured: {prediction: iteration_time_s, unit: ms, columns: [{column: time, label: mine, scenario: {seed: 1}}]}
thresholds: {mean: 0.05, worst: 0.12, percentile_95: 0.3}
"""
STEPS_CSV: Final = "row,num_layers,microbatch_size,half,time\n1,1,1,fitted,3.5\n2,2,2,fitted,6\n3,2,1,held,7\n"
COLLECTIVES: Final = """\
citation: Nobody
source: Arithmetic
licence: facts
data: collectives.csv
row: [collective, bytes]
base: {node: hgx-h100, num_nodes: 1, nic: {bandwidth: 50 GB/s, latency: 1 us, per_node: 8}, issue: 3 us}
columns: {collective: collective, num_devices: n_gpus, bytes: bytes}
measured: {prediction: collective_time_s, unit: us, columns: [{column: time_s}]}
thresholds: {mean: 0.5, worst: 2}
"""
COLLECTIVES_CSV: Final = "system,collective,n_gpus,n_nodes,bytes,kind,time_s\n" + "".join(
    f"one,{kind},8,1,{1 << power},measured,{20e-6 + (1 << power) / 200e9}\n"
    for kind in ("all_reduce", "alltoall", "send_recv") for power in (10, 16, 22)
)  # fmt: skip
PLANS: Final = """\
base:
  name: small
  cluster: {node: local-cpu, num_nodes: 1, devices_per_node: 2}
  model: {family: gpt, num_layers: 2, hidden_size: 64, num_heads: 4, sequence_length: 32, vocab_size: 128}
  training: {global_batch_size: 8, microbatch_size: 2, precision: fp32}
plans:
  data: {parallel.data.degree: 2}
  tensor: {parallel.tensor.degree: 2, training.global_batch_size: 4}
thresholds: {mean: 0.1, worst: 0.3, ranking: 0.8}
"""


def cases(*files: dict[str, str]) -> Callable[[], list[Case]]:
    """Return a function that returns these files as bytes."""
    return lambda: [{name: text.encode() for name, text in each.items()} for each in files]


def scenarios() -> list[Case]:
    """Return scenarios of all kinds."""
    texts = [{"a.yaml": text} for text in (DENSE, MIXTURE, SHARDED, GEMMA, SHARED, TEXTBOOK, TEXTBOOK)]
    return cases(*texts, {"a.yaml": CUSTOM, "actions.csv": ACTIONS})()


def kinds() -> list[Case]:
    """Return small scenarios of the kinds of work without a training step."""
    mix = "cluster: {num_nodes: 4, devices_per_node: 8}\njobs: {draw: {num_jobs: 6, load: 0.9}}\npolicy: tiresias\n"
    files = FILES | {"job_mix": mix}
    return cases(*({"a.yaml": f"name: a\nworkload: {kind}\n{text}"} for kind, text in files.items()))()


def actions() -> list[Case]:
    """Return a schedule of actions with its scenario."""
    return cases({"actions.csv": ACTIONS}, {"actions.csv": re.sub(r"(\d)B(\d)", r"\1I\2,\1W\2", ACTIONS)})()


def clusters() -> list[Case]:
    """Return topologies of every kind, those of the library."""
    paths = [path for path in sorted((SCENARIOS / "clusters").glob("*.yaml")) if path.stat().st_size < 4_000]
    small = [yaml.safe_load(path.read_text())["cluster"] for path in paths]
    small = [cluster for cluster in small if cluster["num_nodes"] <= MOST_NODES]
    return cases(
        *({"a.yaml": yaml.safe_dump({"name": "a", "cluster": cluster}, sort_keys=False)} for cluster in small)
    )()


def profiles() -> list[Case]:
    """Return a profile of a packaged generation."""
    entry = {"schema": "meshtwin.profile/1", "node": "hgx-h100", **packaged_entry("h100")}
    measured = {"peak": {"bfloat16": "700 TFLOP/s"}, "memory_bandwidth": "3 TB/s", "intra_bandwidth": "400 GB/s",
                "intra_latency": "1 us"}  # fmt: skip
    rated = {**entry, "measured": measured, "float8": {"source": "x", "peak_fraction": 0.9}}
    texts = (yaml.safe_dump(each, sort_keys=False, width=120) for each in (entry, rated))
    return cases(*({"profile.yaml": text} for text in texts))()


def configs() -> list[Case]:
    """Return configurations of models as Hugging Face has them."""
    return cases(*({"config.json": json.dumps(config, indent=1)} for config in CONFIGS))()


def entries() -> list[Case]:
    """Return an entry of each part of the hardware catalogue."""
    found = []
    for name, kind in (("devices", "device"), ("nodes", "node")):
        catalogue = yaml.safe_load((CATALOGUE / f"{name}.yaml").read_text())
        found += [{"a.yaml": yaml.safe_dump({kind: entry})} for entry in list(catalogue.values())[:2]]
    return cases(*found)()


def presets() -> list[Case]:
    """Return the files of published models."""
    return [{"a.yaml": path.read_bytes()} for path in sorted((SCENARIOS / "presets").glob("*.yaml"))[:3]]


def options() -> list[Case]:
    """Return options of a sweep and of a simulation, a line each."""
    lines = (
        "parallel.tensor.degree=1,2\nparallel.pipeline.schedule=1f1b,'gpipe'", "model.hidden_size=64,128",
        "parallel.pipeline={degree: 2},{degree: 1}\nseed=0,1", "training.recompute=none,full",
    )  # fmt: skip
    return cases(*({"options.txt": text} for text in lines))()


def tables() -> list[Case]:
    """Return sidecars with their tables."""
    return cases(
        {"steps.yaml": STEPS, "steps.csv": STEPS_CSV}, {"steps.yaml": COLLECTIVES, "collectives.csv": COLLECTIVES_CSV}
    )()


def steps() -> list[Case]:
    """Return measured steps with their sidecar."""
    return cases({"steps.yaml": STEPS, "steps.csv": STEPS_CSV})()


def measured() -> list[Case]:
    """Return tables of measured kernels and collectives."""
    products = pd.DataFrame(
        {"m": [64, 128, 4096], "n": [64, 256, 4096], "k": [64, 64, 8192], "time_s": [4e-6, 5e-6, 4e-4]}
    )
    sizes = {"batch_size": [1, 2], "isl": [64, 1], "step": [0, 64], "num_heads": [8, 8], "num_key_value_heads": [8, 2],
             "head_dim": [64, 128], "time_s": [1e-5, 2e-5]}  # fmt: skip
    found = []
    for frame in (products, pd.DataFrame(sizes)):
        sink = io.BytesIO()
        frame.to_parquet(sink)
        found.append({"table.parquet": sink.getvalue()})
    return [*found, {"table.csv": COLLECTIVES_CSV.encode()}, {"table.csv": products.to_csv(index=False).encode()}]


def plans() -> list[Case]:
    """Return a set of plans."""
    return cases({"plans.yaml": PLANS})()


def recordings() -> list[Case]:
    """Return what a session has seen, numbers that are not finite included."""
    seen = {"loss": {2: np.array([3.5]), 3: np.array([math.nan])}, "load": {0: np.arange(6.0).reshape(2, 3)}}
    recording = Recording((RecordedStep("step 0", Seen(0.25, seen)), RecordedStep("step 1", Seen(0.5))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.json"
        recording.write(path)
        return cases({path.name: path.read_text()})()


ROUTED: Final = RoutingShape(num_layers=2, num_sources=2, num_experts=4, num_tokens=8, top_k=2)


def routings() -> list[Case]:
    """Return a recorded routing, once as CSV and once as Parquet."""
    recorded = RecordedRouting.of("routing", [Skew(zipf=1.0).routing(ROUTED), Skew(zipf=2.0).routing(ROUTED)])
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("routing.csv", "routing.parquet"):
            write_routing(Path(folder) / name, recorded)
            found.append({name: (Path(folder) / name).read_bytes()})
    return found


def jobs() -> list[Case]:
    """Return recorded jobs in each format."""
    return [{"jobs.meshtwin": JOBS.encode()}, {"jobs.philly": PHILLY.encode()}, {"jobs.alibaba": ALIBABA.encode()},
            {"jobs.pollux": POLLUX.encode()}, {"jobs.ones": ONES.encode()}]  # fmt: skip


DRAFTS: Final = """\
text: a text
eagle:
  hit_rates:
  - [0.6, 0.2]
  - [0.5, 0.1]
  trees:
  - nodes: 4
    static: {positions: 5.0, lengths: [0.4, 0.3, 0.3], frontiers: [1.0, 2.0]}
    reranked: {positions: 4.6, lengths: [0.3, 0.3, 0.4], frontiers: [1.0, 6.5]}
lookahead: {drafted: 4, positions: 6.2, lengths: [0.5, 0.25, 0.25]}
jacobi: {drafted: 4, acceptance: 0.3, positions: 5.0, lengths: [0.7, 0.2, 0.1]}
"""
"""A recording of drafts."""


def requests() -> list[Case]:
    """Return recorded requests, once as Azure and once as Mooncake publish them."""
    return [{"requests.csv": AZURE.encode()}, {"requests.jsonl": MOONCAKE.encode()}]


def drafts() -> list[Case]:
    """Return a recording of hit rates, of steps of trees, and of chains."""
    return [{"drafts.yaml": DRAFTS.encode()}]


def trainings() -> list[Case]:
    """Return measured steps and epochs, of a placement on two nodes and of one node."""
    steps = f"{MEASURED_STEPS}a,1,1,1,8,0.4,0.1\na,11,2,2,4,0.4,0.1\na,11,2,2,8,0.5,0.2\n"
    return [{"steps.csv": steps.encode(), "epochs.csv": EPOCHS.encode(), "trainings.yaml": SIDECAR.encode()}]


def lookups() -> list[Case]:
    """Return recorded lookups of embedding tables, as a CSV file and as Criteo publishes them."""
    return [{"lookups.csv": LOOKUPS.encode()}, {"lookups.tsv": CRITEO_LINES.encode()}]


def results() -> list[Case]:
    """Return two results beside each other, as ``compare`` takes them."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, (text, name) in enumerate(((DENSE, "dense"), (TEXTBOOK, "textbook"))):
            path = Path(scratch) / f"{name}.yaml"
            path.write_text(text)
            case: Case = {}
            for side, changes in (
                ("one", []),
                ("two", ["parallel.pipeline.degree=1", *["parallel.tensor.degree=4"] * (1 - number)]),
            ):
                out = Path(scratch) / f"{name}-{side}"
                simulate(load_scenario(path, changes)).write(out)
                for file in ("timeline.parquet", "summary.json"):
                    case[f"{side}/{file}"] = (out / file).read_bytes()
            found.append(case)
    return [*found, {name: raw for name, raw in found[0].items() if name.endswith(".parquet")}]


def points() -> list[Case]:
    """Return kept points of a sweep: all of them, and those of one that was cut off."""
    job = prepare(PIPELINE, read_settings(SWEPT[1::2]))
    with tempfile.TemporaryDirectory() as scratch:
        with kept_points(Path(scratch), job) as kept:
            refused = {job.points[0][0].index: "a rule that refuses it"}
            run(
                job, local_workers, 1, tick=lambda: None,
                keep=lambda index, outcome: kept.add(index, refused.get(index, outcome)),
            )  # fmt: skip
        whole = (Path(scratch) / KEPT).read_bytes()
    return [{f"kept/{KEPT}": whole}, {f"kept/{KEPT}": whole[: len(whole) // 2]}]


def traces() -> list[Case]:
    """Return profiles of the PyTorch profiler: of one rank and of two, gzipped, and as an archive."""
    ranks = [json.dumps(_rank(rank)).encode() for rank in (0, 1)]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for rank, raw in enumerate(ranks):
            member = tarfile.TarInfo(f"rank{rank}.json")
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    both = {"profile/rank0.json": ranks[0], "profile/rank1.json": ranks[1]}
    packed = {"profile.json.gz": gzip.compress(ranks[0], mtime=0)}
    return [both, both, {"profile.json": ranks[0]}, packed, {"profile.tar": archive.getvalue()}]


def _rank(rank: int) -> dict[str, Any]:
    """Return two steps of one rank, with products, copies, an all_reduce, a message and the memory that it holds."""
    events = []
    for step, begin in enumerate((0.0, 1_000.0)):
        one = 10 * step + 1
        events += [
            annotation(f"ProfilerStep#{step}", begin, 900.0),
            launch(one, begin + 1), launch(one + 1, begin + 3), launch(one + 2, begin + 5), launch(one + 3, begin + 7),
            activity("gemm", begin + 10, 100, correlation=one),
            activity("Memcpy HtoD", begin + 120, 10, correlation=one + 1, cat="gpu_memcpy", bytes=4096),
            all_reduce(begin + 100 + rank, 60 - rank, correlation=one + 2, Seq=step),
            activity(
                SEND_RECV, begin + 200, 20, stream=22, correlation=one + 3,
                **{"Collective_name": "send" if rank == 0 else "recv", "In_msg_nelems": 8, "Out_msg_nelems": 8,
                   "dtype": "Float", "Group_size": 2, "Process_Group_Ranks": "[0, 1]", "Src_Rank": 0, "Dst_Rank": 1},
            ),
            memory(begin + 4, 1 << 20),
        ]  # fmt: skip
    return document(events, rank=rank, world_size=2)


def chakra() -> list[Case]:
    """Return Chakra traces of two ranks, with groups."""
    nodes = {
        rank: (
            Node(id=1, name="a", kind="compute", duration_s=1e-3, num_bytes=64, flop=128, stream="compute"),
            Node(id=2, name="sum", kind="all_reduce", after=(1,), duration_s=1e-4, num_bytes=4096, group="dp",
                 stream="dp"),
            Node(id=3, name="to", kind="send" if rank == 0 else "recv", after=(1,), duration_s=1e-4, num_bytes=64,
                 peer=1 - rank, tag=3, stream="pp"),
            Node(id=4, name="host", kind="host", after=(2, 3), duration_s=1e-5),
            Node(id=5, name="b", kind="compute", after=(2, 4), duration_s=2e-3, stream="compute"),
        ) for rank in (0, 1)
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        write_trace(ChakraTrace(nodes, {"dp": (0, 1)}), Path(scratch), "run")
        return [{f"chakra/{path.name}": path.read_bytes() for path in Path(scratch).iterdir()}]
