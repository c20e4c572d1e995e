"""Mistakes that users make: what they write, what the message must name, what it tells them to do, and that done.

``names`` and ``says`` are parts of the message. ``follow`` is the remedy taken literally: it must be valid.
"""

from typing import NamedTuple

Edits = tuple[tuple[str, str], ...]
"""Parts of a file's text, and what stands in their places."""


class FileMistake(NamedTuple):
    """A mistake in the file of the first scenario: its edits, and those of the remedy, which come after them."""

    made: Edits
    names: str
    says: str
    follow: Edits


class CommandMistake(NamedTuple):
    """A mistake on the command line. ``{file}``, ``{tiny}``, ...: files that the test makes."""

    made: str
    names: str
    says: str
    follow: str


def _named(old: str, wrong: str, key: str, right: str, follow: str = "") -> FileMistake:
    """Return a key under another program's name; ``right``: what the message says of it."""
    name = key.rpartition(".")[2]
    return FileMistake(((old, wrong),), f"{key}: unknown key", f"{name} is written as {right} here",
                       ((wrong, follow or old),))  # fmt: skip


def _value(old: str, wrong: str, names: str, says: str, follow: str) -> FileMistake:
    """Return a wrong value, in whose place ``follow`` is right."""
    return FileMistake(((old, wrong),), names, says, ((wrong, follow),))


MODEL = "model: {family: gpt, num_layers: 80, hidden_size: 12288, num_heads: 96, sequence_length: 2048, "
MODEL += "vocab_size: 51200}"
TENSOR = "tensor: {method: 1d, degree: 8, sequence_parallel: false}"
PIPELINE = "pipeline: {degree: 8, schedule: interleaved_1f1b, virtual_stages: 2}"
DATA = "data: {degree: 24, zero_stage: 0, overlap_gradient_sync: true}"


def _experts(keys: str) -> str:
    """Return the model with four experts in the place of every MLP."""
    return f"{MODEL[:-1]}, experts: {{num_experts: 4, top_k: 2, ffn_hidden_size: 512, {keys}}}}}"


FILES = (
    # --- names of other programs
    _named("num_nodes: 192", "nodes: 192", "cluster.nodes", "cluster.num_nodes"),
    _named("num_nodes: 192", "gpus: 1536", "cluster.gpus", "cluster.num_nodes"),
    _named("num_nodes: 192", "num_nodes: 192, gpus_per_node: 8", "cluster.gpus_per_node", "cluster.devices_per_node",
           "num_nodes: 192, devices_per_node: 8"),
    _named("global_batch_size: 2304", "gradient_accumulation_steps: 48", "training.gradient_accumulation_steps",
           "training.global_batch_size", "global_batch_size: 2304"),
    _named("global_batch_size: 2304", "global_batch: 2304", "training.global_batch", "training.global_batch_size"),
    _named("microbatch_size: 2", "micro_batch_size: 2", "training.micro_batch_size", "training.microbatch_size"),
    _named("precision: fp16", "dtype: fp16", "training.dtype", "training.precision"),
    _named("recompute: full", "activation_checkpointing: full", "training.activation_checkpointing",
           "training.recompute"),
    _named(TENSOR, "tp: 8", "parallel.tp", "parallel.tensor.degree", "tensor: {degree: 8}"),
    _named(TENSOR, "tensor_parallel_size: 8", "parallel.tensor_parallel_size", "parallel.tensor.degree",
           "tensor: {degree: 8}"),
    _named(PIPELINE, "pp: 8", "parallel.pp", "parallel.pipeline.degree", "pipeline: {degree: 8}"),
    _named(PIPELINE, "pipeline_parallel_size: 8", "parallel.pipeline_parallel_size", "parallel.pipeline.degree",
           "pipeline: {degree: 8}"),
    _named(DATA, "dp: 24", "parallel.dp", "parallel.data.degree", "data: {degree: 24}"),
    _named(DATA, f"{DATA}\n  cp: 1", "parallel.cp", "parallel.context.degree", f"{DATA}\n  context: {{degree: 1}}"),
    _named(DATA, f"{DATA}\n  ep: 1", "parallel.ep", "parallel.expert.degree", f"{DATA}\n  expert: {{degree: 1}}"),
    _named("zero_stage: 0", "fsdp: true", "parallel.data.fsdp", "parallel.data.zero_stage: 3", "zero_stage: 3"),
    _named("virtual_stages: 2", "vpp: 2", "parallel.pipeline.vpp", "parallel.pipeline.virtual_stages"),
    _named("sequence_length: 2048", "seq_length: 2048", "model.seq_length", "model.sequence_length"),
    _named("sequence_length: 2048", "max_seq_len: 2048", "model.max_seq_len", "model.sequence_length"),
    _named("hidden_size: 12288", "hidden_dim: 12288", "model.hidden_dim", "model.hidden_size"),
    _named("hidden_size: 12288", "d_model: 12288", "model.d_model", "model.hidden_size"),
    _named("num_layers: 80", "n_layers: 80", "model.n_layers", "model.num_layers"),
    _named("num_heads: 96", "n_heads: 96", "model.n_heads", "model.num_heads"),
    # --- keys in the wrong section
    FileMistake((("precision: fp16", "precision: fp16, zero_stage: 1"),), "training.zero_stage: unknown key",
                "write parallel.data.zero_stage", ((", zero_stage: 1", ""), ("zero_stage: 0", "zero_stage: 1"))),
    FileMistake((("parallel:\n", "parallel:\n  zero_stage: 1\n"),), "parallel.zero_stage: unknown key",
                "write parallel.data.zero_stage", (("  zero_stage: 1\n", ""), ("zero_stage: 0", "zero_stage: 1"))),
    FileMistake((("seed: 0", "seed: 0\nbandwidth: 2x"),), "bandwidth: unknown key", "write cluster.network.bandwidth",
                (("bandwidth: 2x\n", ""), ("num_nodes: 192", "num_nodes: 192, network: {bandwidth: 2x}"))),
    FileMistake((("parallel:\n  tensor", "tensor"), ("  pipeline", "pipeline"), ("  data", "data")),
                "my.yaml:6: tensor: unknown key", "tensor belongs under parallel",
                (("tensor: {", "parallel:\n  tensor: {"), ("pipeline: {", "  pipeline: {"), ("data: {", "  data: {"))),
    _value(TENSOR, "tensor: 8", "parallel.tensor: a mapping", "write tensor: {degree: 8}", "tensor: {degree: 8}"),
    # --- wrong units
    _value("zero_stage: 0", "bucket: 25", "parallel.data.bucket: 25 has no unit", "e.g. '80 GiB'", "bucket: 25 MiB"),
    _value("zero_stage: 0", "bucket: 25 MB/s", "parallel.data.bucket: '25 MB/s'", "one of the units B, KB, MB",
           "bucket: 25 MB"),
    _value("num_nodes: 192", "num_nodes: 192, network: {bandwidth: 400}", "cluster.network.bandwidth", "as in 2x",
           "num_nodes: 192, network: {bandwidth: 2x}"),
    _value("seed: 0", "software: {launch: 5}", "software.launch: 5 has no unit", "e.g. '2.5 us'",
           "software: {launch: 2.5 us}"),
    # --- typed values
    _value("num_layers: 80", "num_layers: '80'", "model.num_layers", "without quotes", "num_layers: 80"),
    _value("degree: 24", "degree: 24.0", "parallel.data.degree", "write a whole number", "degree: 24"),
    _value("hidden_size: 12288", "hidden_size: 12,288", "the key 288", "without commas, as in 12288",
           "hidden_size: 12288"),
    _value("sequence_parallel: false", "sequence_parallel: no", "parallel.tensor.sequence_parallel",
           "write true or false, without quotes, or auto", "sequence_parallel: auto"),
    # --- experts
    _value(MODEL, _experts("routing: balancd"), "model.experts.routing", "did you mean balanced?",
           _experts("routing: balanced")),
    _value(MODEL, _experts("routing: {skewed: {}}"), "model.experts.routing.skewed: unknown key", "did you mean skew?",
           _experts("routing: {skew: {}}")),
    _value(MODEL, _experts("routing: {step: 3}"), "model.experts.routing: it states no routing",
           "write one of skew, shares and trace", _experts("routing: {skew: {}, step: 3}")),
    _value(MODEL, _experts("routing: {shares: [0.5, 0.5]}"), "there are 2 shares for 4 experts", "a share for each",
           _experts("routing: {shares: [0.5, 0.5, 0, 0]}")),
    _value(MODEL, _experts("routing: {shares: [0.5, 0.5, 0, 0], step: 3}"), "shares are those of every step",
           "leave it out", _experts("routing: {shares: [0.5, 0.5, 0, 0]}")),
    _value(MODEL, _experts("routing: {shares: [1, 0, 0, 0]}"), "a token chooses an expert once",
           "a share of at most 1/2", _experts("routing: {shares: [0.5, 0.5, 0, 0]}")),
    _value(MODEL, _experts("gate: switch"), "switch chooses 1 of the experts, and top_k is 2", "write 1, or",
           _experts("gate: gshard")),
    _value(MODEL, _experts("dense_to_sparse: {end: 2.0}"), "it goes from 1 to 2", "at most the start",
           _experts("gate: top_k")),
    _value(MODEL, _experts("dispatch: exact"), "model.experts.dispatch", "write routing: balanced",
           _experts("dispatch: exact, routing: balanced")),
    # --- numbers that do not go together
    _value("microbatch_size: 2", "microbatch_size: 5", "training.global_batch_size", "choose a multiple of 120",
           "microbatch_size: 5, global_batch_size: 4800")._replace(follow=(
               ("microbatch_size: 5", "microbatch_size: 5"), ("global_batch_size: 2304", "global_batch_size: 4800"))),
    _value("num_heads: 96", "num_heads: 90", "model.num_heads", "choose a divisor of 12288", "num_heads: 64"),
    FileMistake((("degree: 8, sequence", "degree: 4, sequence"),), "parallel.data.degree", "write data.degree: 48",
                (("degree: 24", "degree: 48"),)),
    FileMistake((("num_nodes: 192", "num_nodes: 128"),), "parallel.data.degree", "or auto, or num_nodes: 192",
                (("num_nodes: 128", "num_nodes: 192"),)),
    FileMistake((("global_batch_size: 2304", "global_batch_size: 2400"),), "parallel.pipeline.schedule",
                "write training.global_batch_size: 2688", (("global_batch_size: 2400", "global_batch_size: 2688"),)),
    _value("zero_stage: 0", "zero_stage: 0, shard_degree: 6", "parallel.data.shard_degree", "or write zero_stage: 2",
           "zero_stage: 2, shard_degree: 6"),
    # --- unknown names
    _value("node: dgx-a100-80g", "node: a100", "cluster.node: there is no node 'a100'", "did you mean dgx-a100-80g",
           "node: dgx-a100-80g"),
    _value(MODEL, "model: {preset: gpt3-175b}", "model.preset: there is no model preset", "did you mean gpt-3-175b?",
           "model: {preset: gpt-3-175b}"),
    _value(MODEL, "model: gpt-3-175b", "model: a mapping belongs here", "preset: NAME", "model: {preset: gpt-3-175b}"),
    _value("schedule: interleaved_1f1b", "schedule: interleaved", "parallel.pipeline.schedule",
           "did you mean interleaved_1f1b?", "schedule: interleaved_1f1b"),
    _value("precision: fp16", "precision: float16", "training.precision", "did you mean fp16?", "precision: fp16"),
    _value("precision: fp16", "precision: fp8", "training.precision", "write precision: bf16", "precision: bf16"),
    _value(MODEL, "model: {huggingface: openai/gpt-3-175b}", "model.huggingface: there is no file",
           "or write model.preset: gpt-3-175b", "model: {preset: gpt-3-175b}"),
    # --- bad files
    _value("parallel:\n  tensor", "parallel:\n\ttensor", "my.yaml:7: this is not YAML", "indent with spaces, not tabs",
           "parallel:\n  tensor"),
    _value("seed: 0", "seed: 0\nseed: 1", "seed: the key is written twice", "keep one of the two", "seed: 1"),
    _value("seed: 0", "seed:", "seed: the key has no value", "leave the key out", "# seed:"),
)  # fmt: skip

COMMANDS = (
    # --- --set
    CommandMistake(
        "schedule {file} --set parallel.tensor.degree=4",
        "--set parallel.tensor.degree=4: parallel.data.degree",
        "write data.degree: 48",
        "schedule {file} --set parallel.tensor.degree=4 --set parallel.data.degree=48",
    ),
    CommandMistake(
        "schedule {tiny} --set parallel.pipeline.schedule=1f1b,gpipe",
        "parallel.pipeline.schedule",
        "simulate sweep SCENARIO.yaml --set parallel.pipeline.schedule=1f1b,gpipe",
        "sweep {tiny} --jobs 1 --set parallel.pipeline.schedule=1f1b,gpipe",
    ),
    CommandMistake(
        "schedule {file} --set zero_stage=1",
        "--set zero_stage=1: zero_stage",
        "write parallel.data.zero_stage",
        "schedule {file} --set parallel.data.zero_stage=1",
    ),
    CommandMistake(
        "schedule {file} --set tensor_parallel_size=8",
        "--set tensor_parallel_size=8",
        "written as parallel.tensor.degree here",
        "schedule {file} --set parallel.tensor.degree=8",
    ),
    CommandMistake(
        "schedule {file} --set parallel.tensor.degree",
        "--set parallel.tensor.degree: an override",
        "write it as in --set parallel.tensor.degree=4",
        "schedule {file} --set parallel.tensor.degree=8",
    ),
    CommandMistake(
        "schedule {file} --set seed=",
        "--set seed=: there is no value",
        "write --set key=value",
        "schedule {file} --set seed=1",
    ),
    CommandMistake(
        "schedule {file} seed=1",
        "unexpected extra argument (seed=1)",
        "write --set seed=1",
        "schedule {file} --set seed=1",
    ),
    CommandMistake(
        "schedule {file} --set seed.first=1",
        "--set seed.first=1: seed.first",
        "set seed itself",
        "schedule {file} --set seed=1",
    ),
    CommandMistake(
        "schedule {file} --set model={{huggingface:x}}",
        "the key has no value",
        "write a blank after the colon",
        "schedule {file}",
    ),
    # --- commands, and names of files
    CommandMistake(
        "quickstrat",
        "'quickstrat' is neither a command nor a scenario file",
        "did you mean the scenario quickstart?",
        "show quickstart",
    ),
    CommandMistake("schedul {file}", "'schedul' is neither", "did you mean the command schedule?", "schedule {file}"),
    CommandMistake(
        "schedule quikstart.yaml",
        "quikstart.yaml: there is no such file",
        "name the scenario quickstart",
        "schedule quickstart",
    ),
    CommandMistake(
        "show clusters/rail",
        "clusters/rail: there is no such file",
        "name the scenario clusters/rails",
        "show clusters/rails",
    ),
    CommandMistake("schedule my.yml", "my.yml: there is no such file", "did you mean my.yaml?", "schedule my.yaml"),
    CommandMistake(
        "schedule {here}", "{here}: this is a directory", "for example {here}/empty.yaml", "schedule {here}/my.yaml"
    ),
    CommandMistake("schedule empty.yaml", "empty.yaml: the file is empty", "simulate new my.yaml", "new other.yaml"),
    CommandMistake(
        "schedule list.yaml", "list.yaml:1: the file holds a list", "simulate new my.yaml", "new other.yaml"
    ),
    CommandMistake("schedule notes.txt", "notes.txt:1: the file holds", "simulate new my.yaml", "new other.yaml"),
    CommandMistake("new my.yaml", "my.yaml: there is already such a file", "name another one", "new other.yaml"),
    CommandMistake(
        "new other.yaml --workload train", "--workload", "did you mean training?", "new other.yaml --workload training"
    ),
    CommandMistake("list gpus", "'gpus' is not one of", "'nodes'", "list nodes"),
    CommandMistake("show {tiny} --out here.gif", "--out here.gif: .gif", "ends in .svg", "show {tiny} --out here.svg"),
    CommandMistake("{tiny} --out my.yaml", "--out my.yaml", "name a directory", "{tiny} --out results"),
    # --- sweep
    CommandMistake(
        "sweep {tiny} --jobs 1",
        "--set: a sweep needs values",
        "--set parallel.tensor.degree=1,2,4",
        "sweep {tiny} --jobs 1 --set parallel.tensor.degree=1,2,4",
    ),
    CommandMistake(
        "sweep {tiny} --jobs 1 --set seed=1,1",
        "seed: the value 1 comes twice",
        "keep one of the two",
        "sweep {tiny} --jobs 1 --set seed=1",
    ),
    CommandMistake(
        "sweep {tiny} --jobs 1 --set seed=1,,2",
        "a value is missing",
        "write --set key=a,b",
        "sweep {tiny} --jobs 1 --set seed=1,2",
    ),
    CommandMistake(
        "sweep {tiny} --jobs 1 --set seed=1 --set seed=2",
        "seed was set before",
        "list all values in one option",
        "sweep {tiny} --jobs 1 --set seed=1,2",
    ),
    CommandMistake(
        "sweep {tiny} --jobs 1 --set parallel.data.degree=2,3",
        "--set parallel.data.degree=2: parallel.data.degree",
        "write data.degree: 1",
        "sweep {tiny} --jobs 1 --set parallel.data.degree=1",
    ),
    CommandMistake(
        "sweep {tiny} --jobs 1 --set pp=1,2",
        "--set pp=1: pp",
        "pp is written as parallel.pipeline.degree here",
        "sweep {tiny} --jobs 1 --set parallel.pipeline.degree=2",
    ),
    # --- compare, trace, replay
    CommandMistake("compare result", "Missing argument 'SECOND'", "compare", "compare result result"),
    CommandMistake(
        "compare result nothing",
        "nothing: there is no such file or folder",
        "name a folder that simulate wrote",
        "compare result result",
    ),
    CommandMistake(
        "compare result my.yaml",
        "my.yaml: this is neither a timeline nor a trace",
        "name a folder that simulate wrote",
        "compare result result",
    ),
    CommandMistake(
        "compare result result --fail-above 10",
        "'10' is not a percentage",
        "write it as in 10%",
        "compare result result --fail-above 10%",
    ),
    CommandMistake("trace result", "result: this is what simulate wrote", "name", "compare result result"),
    CommandMistake(
        "trace profile --steps some", "'some' is no choice of steps", "write all", "trace profile --steps all"
    ),
    CommandMistake(
        "replay profile --set cluster.device.compute=2",
        "--set cluster.device.compute",
        "2x",
        "replay profile --set cluster.device.compute=2x",
    ),
    CommandMistake(
        "replay profile --set device.compute=2x",
        "--set device.compute",
        "cluster.device.compute",
        "replay profile --set cluster.device.compute=2x",
    ),
    # --- execute, calibrate: the remedy is valid where the work begins
    CommandMistake(
        "execute {tiny} --timeout 30", "--timeout 30: '30' has no unit", "e.g. '30 s'", "execute {tiny} --timeout 30s"
    ),
    CommandMistake("execute {tiny} --device gpu", "'gpu' is not one of", "'cuda'", "execute {tiny} --device cpu"),
    CommandMistake("execute {tiny} --steps 1", "1 is not in the range", "2<=x<=1000", "execute {tiny} --steps 2"),
    CommandMistake(
        "execute {tiny} --collectives explicit:rings",
        "rings",
        "did you mean ring?",
        "execute {tiny} --collectives explicit:ring",
    ),
    CommandMistake(
        "execute {file}",
        "1,536 ranks on this computer need",
        "make the model, the batch or the degrees smaller",
        "execute {file} --set cluster.num_nodes=1 --set parallel.tensor.degree=1 --set parallel.data.degree=1 "
        "--set model.num_layers=16 --set model.hidden_size=96 --set model.vocab_size=512 "
        "--set model.sequence_length=128 --set training.global_batch_size=16",
    ),
    CommandMistake("calibrate", "Missing option '--out'", "--out", "calibrate --out profile.yaml"),
    CommandMistake(
        "calibrate --out profile.yaml --budget 60",
        "--budget 60: '60' has no unit",
        "s, min",
        "calibrate --out profile.yaml --budget 60s",
    ),
    CommandMistake(
        "calibrate --out profile.yaml --budget 60 s",
        "unexpected extra argument (s)",
        "into quotes",
        "calibrate --out profile.yaml --budget '60 s'",
    ),
    CommandMistake(
        "calibrate --out profile.yaml --node local",
        "--node: there is no node 'local'",
        "did you mean local-cpu",
        "calibrate --out profile.yaml --node local-cpu",
    ),
    # --- what a newcomer tries
    CommandMistake(
        "simulate {file} --set 'cluster.stragglers=[{{rank: 3, slowdown: 1.3}}]' --advice none",
        "cluster.stragglers[0].rank: unknown key",
        "rank is written as cluster.stragglers.device",
        "schedule {file} --set 'cluster.stragglers=[{{device: 3, slowdown: 1.3}}]'",
    ),
    CommandMistake(
        "simulate {file} --set model=llama-3-8b",
        "a mapping belongs here, not 'llama-3-8b'",
        "write {{preset: llama-3-8b}}",
        "schedule {file} --set 'model={{preset: llama-3-8b}}' --set parallel.pipeline.virtual_stages=2",
    ),
    CommandMistake(
        "trace resnet-ddp-h100",
        "there is no such file",
        "did you mean the recording resnet-ddp-a100?",
        "trace resnet-ddp-a100",
    ),
    CommandMistake(
        "schedule {file} --set cluster.device_price=2.5",
        "cluster.device_price: 2.5 has no unit",
        "2.50 USD/h",
        "schedule {file} --set 'cluster.device_price=2.50 USD/h'",
    ),
)
