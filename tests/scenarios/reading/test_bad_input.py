"""Bad input: one clear message with file, line, key, rule and remedy; exit code 2, no traceback, nothing written."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.errors import ScenarioError
from scenarios.reading.documents.text_file import read_text
from scenarios.results.folder import refuse_unwritable
from tests.scenarios.conftest import QUICKSTART
from tests.scenarios.refusing import refuse
from traces.parquet import write_timeline
from traces.timeline import TimelineBuilder

ROOT = Path(__file__).parents[3]


BAD_VALUES = [
    # old, new, line, key, rule, remedy
    ("num_layers: 80", "num_layer: 80", 4, "model.num_layer", "unknown key", "did you mean num_layers?"),
    ("parallel:\n", "paralel:\n", 6, "paralel", "unknown key", "did you mean parallel?"),
    ("degree: 8, sequence", "degre: 8, sequence", 7, "parallel.tensor.degre", "unknown key", "did you mean degree?"),
    ("seed: 0", "num_nodes: 4", 2, "num_nodes", "unknown key", "write cluster.num_nodes"),
    ("seed: 0", "num_heads: 4", 2, "num_heads", "unknown key", "belongs under model"),
    ("seed: 0", "seed: '0'", 2, "seed", "a whole number belongs here, not '0' (text)", "without quotes"),
    ("seed: 0", "seed: true", 2, "seed", "not true (a truth value)", "write it without"),
    ("seed: 0", "seed: 0.0", 2, "seed", "a whole number belongs here, not 0.0", "without"),
    ("seed: 0", "seed:", 2, "seed", "no value", "leave the key out"),
    ("seed: 0", "seed: -1", 2, "seed", "must be at least 0, got -1", "at least 0"),
    ("name: GPT 145.6B on 1,536 A100", "name: 5", 1, "name", "text belongs here, not 5", "quotes"),
    ("num_layers: 80", "num_layers: 80, rotary_base: 5", 4, "model.rotary_base", "unknown key",
     "only models of family: llama have it"),
    ("num_layers: 80", "num_layers: 0", 4, "model.num_layers", "at least 1, got 0", "at least 1"),
    ("num_layers: 80", "num_layers: -80", 4, "model.num_layers", "at least 1, got -80", "at least 1"),
    ("num_layers: 80", "num_layers: 80000", 4, "model.num_layers", "at most 10,000, got 80000", "at most 10,000"),
    ("hidden_size: 12288", "hidden_size: 98304000", 4, "model.hidden_size", "at most 1,000,000", "at most 1,000,000"),
    ("num_nodes: 192", "num_nodes: 0", 3, "cluster.num_nodes", "at least 1, got 0", "at least 1"),
    ("num_nodes: 192", "num_nodes: 900000", 3, "cluster.num_nodes", "= 7,200,000 is more than 1,000,000",
     "125,000 nodes"),
    ("global_batch_size: 2304", "global_batch_size: 480000000", 5, "training.global_batch_size",
     "10,000,000 micro-batches per replica are more than 1,000,000", "smaller"),
    ("microbatch_size: 2", "microbatch_size: -2", 5, "training.microbatch_size", "at least 1", "at least 1"),
    ("microbatch_size: 2", "microbatch_size: 5", 5, "training.global_batch_size",
     "2304 does not divide by microbatch_size x data degree = 5 x 24 = 120", "choose a multiple of 120, e.g. 2400"),
    ("precision: fp16", "precision: fp61", 5, "training.precision", "not one of", "did you mean fp64?"),
    ("precision: fp16", "precision: fp8", 5, "training.precision", "a100-sxm4-80gb does not multiply in float8_e4m3fn",
     "write precision: bf16, or take nodes whose devices do, as hgx-h100"),
    ("precision: fp16", "precision: fp16, gradient_placeholders: true, fused_gradient_accumulation: false", 5,
     "training.gradient_placeholders", "here a second kernel adds them", "leave it out"),
    ("precision: fp16", "precision: fp16, set_gradients_to_none: true", 5, "training.set_gradients_to_none",
     "its weight's type, float16, and here it is accumulated in float32", "leave it out"),
    ("num_heads: 96", "num_heads: 95", 4, "model.num_heads", "12288 does not divide by num_heads 95", "a divisor"),
    ("num_heads: 96", "num_heads: 12", 7, "parallel.tensor.degree", "num_heads 12 does not divide by tensor degree 8",
     "a degree that divides 12"),
    ("family: gpt", "family: gtp", 4, "model.family", "there is no model family 'gtp' (text)",
     "did you mean family: gpt?"),
    ("family: gpt, ", "", 4, "model", "nothing says what kind of model", "family: gpt, llama or delay"),
    ("family: gpt", "preset: gpt-3", 4, "model.preset", "there is no model preset 'gpt-3'", "did you mean gpt-3-13b?"),
    ("family: gpt", "huggingface: no.json", 0, "", "there is no such file", "check the path"),
    ("model: {", "model: [", 4, "", "not YAML", "key: value"),
    ("sequence_length: 2048, ", "", 4, "model.sequence_length", "required and missing",
     "add sequence_length: to model"),
    ("training: {global", "trainin: {global", 5, "trainin", "unknown key", "did you mean training?"),
    ("node: dgx-a100-80g", "node: dgx-a100-80", 3, "cluster.node", "there is no node 'dgx-a100-80'", "dgx-a100-80g"),
    ("num_nodes: 192", "num_nodes: 192, devices_per_node: 9", 3, "cluster.devices_per_node",
     "9 devices of each node, where a dgx-a100-80g has 8", "at most 8"),
    ("degree: 24", "degree: 20", 9, "parallel.data.degree",
     "tensor 8 x pipeline 8 x data 20 = 1280, but 192 nodes x 8 devices = 1536",
     "write data.degree: 24 or auto, or num_nodes: 160"),
    ("degree: 8, s", "degree: auto, s", 8, "parallel.pipeline.degree", "only one degree may be auto", "numbers"),
    ("degree: 24", "degree: 24.0", 9, "parallel.data.degree", "not 24.0", "whole number"),
    ("degree: 24", "degree: many", 9, "parallel.data.degree", "not 'many'", "or auto"),
    ("degree: 24", "degree: 0", 9, "parallel.data.degree", "between 1 and 1,000,000", "auto"),
    ("zero_stage: 0", "zero_stage: 4", 9, "parallel.data.zero_stage", "at most 3, got 4", "at most 3"),
    ("zero_stage: 0", "osdp: 3", 9, "parallel.data.osdp", "a mapping belongs here", "keys below it"),
    ("zero_stage: 0", "osdp: {splits: [1, 0]}", 9, "parallel.data.osdp.splits[1]", "at least 1, got 0", "at least 1"),
    ("zero_stage: 0", "osdp: {gap: -1}", 9, "parallel.data.osdp.gap", "at least 0, got -1", "at least 0"),
    ("zero_stage: 0", 'osdp: {layers: ["5-3"]}', 9, "parallel.data.osdp.layers", "nor a range as 0-19", "range"),
    ("zero_stage: 0", "osdp: {layers: [1, 1]}", 9, "parallel.data.osdp.layers", "layer 1 is named twice", "layers"),
    ("zero_stage: 0", "osdp: {layers: [900]}", 9, "parallel.data.osdp.layers", "layer 900 is named", "of the model"),
    ("zero_stage: 0", "osdp: {layers: [0], gap: 0.1}", 9, "parallel.data.osdp.layers", "gap would choose", "leave one"),
    ("zero_stage: 0", "osdp: {ends: true}", 9, "parallel.data.osdp.ends", "goes with named layers", "osdp.layers"),
    ("zero_stage: 0", "osdp: {memory_limit: 8}", 9, "parallel.data.osdp.memory_limit", "8 has no unit", "GiB"),
    ("zero_stage: 0", "zero_stage: 2, osdp: {}", 9, "parallel.data.zero_stage", "operator by operator", "leave it out"),
    ("zero_stage: 0", "zero_stage: 3, local_degree: 5", 9, "parallel.data.local_degree",
     "24 ranks that share one set of shards are not two or more times 5 neighbours", "write 4, 6, 8 or 12"),
    ("zero_stage: 0", "zero_stage: 2, shard_degree: 7", 9, "parallel.data.shard_degree",
     "groups of 7 ranks do not share out 24 replicas", "write 6, 8, 12 or 24"),
    ("zero_stage: 0", "offload: optimizer", 9, "parallel.data.offload", "zero_stage is 0", "zero_stage: 2"),
    ("zero_stage: 0", "zero_stage: 2, offload: optimizer", 4, "model.tied_embeddings", "to the other pipeline rank",
     "leave offload out"),
    ("zero_stage: 0", "zero_stage: 2, delayed_update: true", 9, "parallel.data.delayed_update",
     "without offload it updates nothing", "write offload: optimizer"),
    ("zero_stage: 0", "zero_stage: 2, offload: cpu", 9, "parallel.data.offload", "(text) is not one of 'optimizer'",
     "optimizer"),
    ("zero_stage: 0", "local_degree: 2", 9, "parallel.data.local_degree", "an option of zero_stage 3", "zero_stage: 3"),
    ("zero_stage: 0", "bucket: 25", 9, "parallel.data.bucket", "25 has no unit", "GiB"),
    ("zero_stage: 0", "bucket: '25'", 9, "parallel.data.bucket", "'25' has no unit", "GiB"),
    ("zero_stage: 0", "bucket: 25 ms", 9, "parallel.data.bucket", "'ms' is a unit of time", "GiB"),
    ("zero_stage: 0", "bucket: 25 Mbit/s", 9, "parallel.data.bucket", "is a unit of bandwidth", "GiB"),
    ("zero_stage: 0", "bucket: -25 MiB", 9, "parallel.data.bucket", "not negative", "GiB"),
    ("zero_stage: 0", "bucket: 0 B", 9, "parallel.data.bucket", "more than zero", "MiB"),
    ("zero_stage: 0", "bucket: 0.4 B", 9, "parallel.data.bucket", "'0.4 B' is less than one byte", "MiB"),
    ("zero_stage: 0", "bucket: 25 MIB", 9, "parallel.data.bucket", "'MIB' is not a known unit (did you mean MiB?)",
     "80 GiB"),
    ("family: gpt", "preset: gpt-3-175b, huggingface: x", 4, "model.huggingface", "unknown key", "either preset or"),
    ("family: gpt", f"family: {'x' * 5000}", 4, "model.family", "there is no model family 'xxx", "write family"),
    ("seed: 0", "<<: {seed: 0}", 2, "<<", "unknown key", "write the keys out"),
    ("degree: 24", "degree: 1000000", 9, "parallel.data.degree", "= 64000000, but", "write data.degree: 24 or auto\n"),
    ("zero_stage: 0", "bucket: 9000 TiB", 9, "parallel.data.bucket", "more than the limit of", "smaller"),
    ("virtual_stages: 2", "virtual_stages: 1", 8, "parallel.pipeline.virtual_stages", "2 or more", "schedule: 1f1b"),
    ("virtual_stages: 2", "layers_per_stage: [1, x]", 8, "parallel.pipeline.layers_per_stage[1]", "not 'x'", "as in 8"),
    ("virtual_stages: 2", "virtual_stages: 2, layers_per_stage: [40, 40]", 8, "parallel.pipeline.layers_per_stage",
     "16 virtual stages must hold 80 layers", "list 16 numbers"),
    ("global_batch_size: 2304", "global_batch_size: 2400", 8, "parallel.pipeline.schedule",
     "interleaved_1f1b needs a multiple of 8 micro-batches (the pipeline degree), got 50",
     "the next valid number is 56: write training.global_batch_size: 2688"),
    ("sequence_parallel: false", "sequence_parallel: false, collective_matmul: true", 7,
     "parallel.tensor.collective_matmul", "sequence_parallel is false", "write sequence_parallel: true"),
    ("degree: 8, sequence_parallel: false", "degree: 8, sequence_parallel: false, collective_matmul: ring", 7,
     "parallel.tensor.collective_matmul", "true or false belongs here, not 'ring'", "without quotes"),
    ("sequence_parallel: false", "sequence_parallel: no", 7, "parallel.tensor.sequence_parallel",
     "true, false or auto belongs here, not 'no'", "without quotes"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "key", "rule", "remedy"), BAD_VALUES)
def test_bad_value_is_refused(
    write, tmp_path, capsys, quickstart, old: str, new: str, line: int, key: str, rule: str, remedy: str
) -> None:
    """Each broken rule is reported with file, line, key, the rule with its numbers, and a remedy."""
    path = write(quickstart, (old, new))
    message = refuse(capsys, tmp_path, str(path), "--out", str(tmp_path / "out"))
    where = f"{path}:{line}: " if line else ""
    assert f"{where}{key}" in message
    assert rule in message.replace(";\n    ", "; ")
    assert remedy in message


@pytest.mark.parametrize(("old", "new", "line", "key", "rule", "remedy"), [
    ("forward: 1 s", "forward: 1", 2, "model.forward", "1 has no unit", "'2.5 us'"),
    ("forward: 1 s", "forward: 1 GiB", 2, "model.forward", "'GiB' is a unit of size in bytes", "ms"),
    ("forward: 1 s", "forward: 0 s", 2, "model.forward", "more than zero", "ms"),
    ("forward: 1 s", "forward: -1 s", 2, "model.forward", "not negative", "ms"),
    ("forward: 1 s", "forward: 1e9 h", 2, "model.forward", "more than the limit", "smaller"),
    ("forward: 1 s", "forward: [1 s]", 2, "model.forward", "text with a unit", "ms"),
    ("hop: 0.25 s", "hops: 0.25 s", 2, "model.hops", "unknown key", "did you mean hop?"),
    ("num_microbatches: 8", "num_microbatches: 0", 3, "training.num_microbatches", "at least 1", "at least 1"),
    ("num_microbatches: 8", "global_batch_size: 8", 3, "training.global_batch_size", "unknown key",
     "known: local_update, method, num_microbatches"),
    ("num_microbatches: 8", "num_microbatches: 10000000", 3, "training.num_microbatches", "at most 1,000,000",
     "at most"),
    ("degree: 4", "degree: auto", 4, "parallel.pipeline.degree", "a whole number belongs here", "as in 8"),
    ("degree: 4, schedule: 1f1b", "degree: 3, schedule: interleaved_1f1b, virtual_stages: 2", 4,
     "parallel.pipeline.schedule", "a multiple of 3 micro-batches",
     "next valid number is 9: write training.num_microbatches: 9"),
])  # fmt: skip
def test_bad_textbook_value_is_refused(
    write, tmp_path, capsys, textbook, old: str, new: str, line: int, key: str, rule: str, remedy: str
) -> None:
    """Textbook workloads have their own keys and the same kind of messages."""
    path = write(textbook, (old, new))
    message = refuse(capsys, tmp_path, str(path))
    assert f"{path}:{line}: {key}" in message
    assert rule in message
    assert remedy in message


def test_pipeline_that_no_computer_holds_is_refused(write, tmp_path, capsys, textbook) -> None:
    """Stages and micro-batches that are each allowed are refused where their product is absurd."""
    path = write(textbook, ("degree: 4", "degree: 10000"), ("num_microbatches: 8", "num_microbatches: 100000"))
    message = refuse(capsys, tmp_path, str(path))
    assert f"{path}:3: training.num_microbatches: 100,000 micro-batches x 10,000 virtual stages" in message
    assert "more than 1,000,000 passes" in message
    assert "at most 100 micro-batches" in message


def test_first_of_several_problems_is_reported_with_their_number(write, tmp_path, capsys, quickstart) -> None:
    """The first by line comes out; the others are counted."""
    path = write(quickstart, ("seed: 0", "seed: x"), ("degree: 24", "degree: 0"), ("zero_stage: 0", "zero_stage: 9"))
    message = refuse(capsys, tmp_path, str(path))
    assert f"{path}:2: seed" in message
    assert "(2 more problems after this one)" in message


@pytest.mark.parametrize(("override", "key", "rule", "remedy"), [
    ("parallel.tensor.degree=0", "parallel.tensor.degree", "between 1 and", "auto"),
    ("parallel.tensr.degree=4", "parallel.tensr", "unknown key", "did you mean tensor?"),
    ("parallel.tensor.degre=4", "parallel.tensor.degre", "unknown key", "did you mean degree?"),
    ("seed.deep=1", "seed.deep", "seed holds 0, which has no keys", "set seed itself"),
    ("seed", "", "a dotted key, =, and a value", "--set parallel.tensor.degree=4"),
    ("parallel.expert.nodes=2", "parallel.expert.nodes", "no ranks share out experts", "leave it out"),
    ("cluster.stragglers[0].slowdown=2", "", "items of a list are not set one by one", "set cluster.stragglers itself"),
    ("=4", "", "a dotted key, =, and a value", "--set parallel.tensor.degree=4"),
    ("a..b=4", "", "a dotted key, =, and a value", "--set parallel.tensor.degree=4"),
    ("seed=", "", "no value after =", "--set key=value"),
    ("seed=[1", "", "not YAML", "spaces"),
    ("seed=!!int 3", "", "tag", "without it"),
    ("parallel.data.degree=20", "parallel.data.degree", "= 1280, but 192 nodes x 8 devices = 1536", "24 or auto"),
    ("cluster.node=hgx-h10", "cluster.node", "there is no node", "hgx-h100"),
    ("model={preset: llama-3-405}", "model.preset", "there is no model preset", "did you mean llama-3-405b?"),
])  # fmt: skip
def test_bad_override_is_refused_in_its_own_name(
    write, tmp_path, capsys, override: str, key: str, rule: str, remedy: str
) -> None:
    """A problem with ``--set`` names the option in place of file and line."""
    message = refuse(capsys, tmp_path, str(write()), "--set", override)
    assert f"--set {override}: {key}" in message
    assert rule in message
    assert remedy in message


BAD_BYTES = [
    (b"", "the file is empty", "simulate new"),
    (b"  \n\n", "the file is empty", "simulate new"),
    (b"\x89PNG\r\n\0\0", "binary", "right file"),
    (b"name: caf\xe9\n", ":1: byte 0xe9 is not valid UTF-8", "UTF-8"),
    (b"\xef\xbb\xbfname: caf\xe9\n", ":1: byte 0xe9 is not valid UTF-8", "UTF-8"),
    ("name: x\n".encode("utf-16"), "binary", "right file"),
    (b"[" * (1 << 21), "larger than 1 MiB", "right file"),
    (b"a: " + b"{a: " * 300_000, "larger than 1 MiB", "right file"),
    (b"a: " + b"[" * 900_000, ":1: values are nested more than 50 deep", "right file"),
    (b"- " * 400_000, ":1: values are nested more than 50 deep", "right file"),
]


@pytest.mark.parametrize(("raw", "rule", "remedy"), BAD_BYTES)
def test_file_that_is_no_scenario_is_refused(tmp_path, capsys, raw: bytes, rule: str, remedy: str) -> None:
    """Empty, binary, wrongly encoded, oversized and over-nested files are refused."""
    path = tmp_path / "my.yaml"
    path.write_bytes(raw)
    message = refuse(capsys, tmp_path, str(path), "--out", str(tmp_path / "out"))
    assert f"{path}{rule}" in message or f"{path}: " in message
    assert rule.lstrip(":1") in message
    assert remedy in message


def test_file_of_a_hundred_megabytes_is_refused_unread(tmp_path, capsys) -> None:
    """A huge (sparse) file is refused after its first MiB."""
    path = tmp_path / "huge.yaml"
    path.touch()
    os.truncate(path, 100 << 20)
    assert "larger than 1 MiB" in refuse(capsys, tmp_path, str(path))


def test_directory_is_refused(tmp_path, write, capsys) -> None:
    """A directory is refused with a scenario inside it as remedy."""
    path = write()
    message = refuse(capsys, tmp_path, str(tmp_path))
    assert f"{tmp_path}: this is a directory" in message
    assert str(path) in message


def test_pipe_that_nobody_writes_to_is_refused(tmp_path, capsys) -> None:
    """A named pipe does not make the command wait for ever; a shell's `<(...)` is read like a file."""
    path = tmp_path / "my.yaml"
    os.mkfifo(path)
    assert f"{path}: the file is empty" in refuse(capsys, tmp_path, str(path))
    reading, writing = os.pipe()
    os.write(writing, b"seed: 0\n")
    os.close(writing)
    assert read_text(Path(f"/dev/fd/{reading}"), "") == "seed: 0\n"
    os.close(reading)


def test_missing_file_names_the_nearest(tmp_path, write, capsys) -> None:
    """A mistyped file name is answered with the file that exists."""
    path = write()
    message = refuse(capsys, tmp_path, str(tmp_path / "mi.yaml"))
    assert "there is no such file" in message
    assert f"did you mean {path}?" in message


def test_a_file_of_this_folder_is_named_for_one_of_the_scenarios(tmp_path, write, capsys, monkeypatch) -> None:
    """A path in a file begins at the file's folder, of --set at the shell's; who mistakes one is told the other."""
    path, here = write(QUICKSTART, ("num_nodes: 192", "num_nodes: 192, profile: cpu.yaml")), tmp_path / "elsewhere"
    here.mkdir()
    (here / "cpu.yaml").write_text("a profile", encoding="utf-8")
    monkeypatch.chdir(here)
    message = refuse(capsys, tmp_path, str(path))
    assert f"{path}:3: cluster.profile: there is no such file: {tmp_path / 'cpu.yaml'}" in message
    assert f"write {here / 'cpu.yaml'}: a path in a file begins at the file's folder" in message
    (here / "cpu.yaml").rename(tmp_path / "near.yaml")
    message = refuse(capsys, tmp_path, str(path), "--set", "cluster.profile=near.yaml")
    assert "--set cluster.profile=near.yaml: cluster.profile: there is no such file: near.yaml" in message
    assert f"write {tmp_path / 'near.yaml'}: a path in --set begins at the working directory" in message


def test_unreadable_file_is_refused(tmp_path, write, capsys, monkeypatch) -> None:
    """A file without read permission is refused; the permission error is injected, since root may read all."""

    def deny(*_args: object, **_named: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write()
    monkeypatch.setattr("os.open", deny)
    message = refuse(capsys, tmp_path, str(path))
    assert f"{path}: the file cannot be read: permission denied" in message
    assert f"chmod u+r {path}" in message


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """Give up root's rights, if this is root, for one test; return a folder in which that user may write."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        if is_root:
            os.seteuid(65534)
        yield Path(folder)
        if is_root:
            os.seteuid(0)


def test_permissions_of_the_file_system_are_honoured(unprivileged: Path) -> None:
    """Without the right to read a file or to write a folder, the message says so; with it, nothing is left behind."""
    closed_file, closed_folder = unprivileged / "a.yaml", unprivileged / "closed"
    closed_file.touch(mode=0o200)
    closed_folder.mkdir(mode=0o500)
    with pytest.raises(ScenarioError, match="cannot be read: permission denied"):
        read_text(closed_file, "")
    for folder in (closed_folder, closed_folder / "a" / "b"):
        with pytest.raises(ScenarioError, match=f"nothing can be written in {closed_folder}: permission denied"):
            refuse_unwritable(folder)
    refuse_unwritable(unprivileged / "a" / "b")
    assert sorted(unprivileged.iterdir()) == [closed_file, closed_folder]


def test_odd_file_names_are_refused() -> None:
    """Names that no file can have are input errors like any other."""
    for name in ("\0", "x" * 5000, "a/b/c/d.yaml", ""):
        with pytest.raises(ValueError, match=r"no such file|cannot be read|a directory"):
            read_text(Path(name), "")


@pytest.mark.parametrize("command", [[], ["execute"]])
@pytest.mark.parametrize(
    "kind", ["file", "below a file", "no such device", "read-only", "link to nothing", "name too long"]
)
def test_unwritable_out_is_refused_before_simulating(
    tmp_path, write, capsys, monkeypatch, kind: str, command: list[str]
) -> None:
    """An ``--out`` that cannot be written is refused before any work, and leaves nothing."""
    path = write()
    out = {"file": path, "below a file": path / "out", "no such device": Path("/proc/nothing/here")}.get(kind, tmp_path)
    if kind == "link to nothing":
        out = tmp_path / "link"
        out.symlink_to(tmp_path / "nothing")
    if kind == "name too long":
        out = tmp_path / ("x" * 256)
    if kind == "read-only":

        def deny(*_args: object, **_named: object) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr("tempfile.TemporaryFile", deny)
    for work in ("scenarios.workloads.steps.running.simulate", "scenarios.workloads.steps.executing.execution.run"):
        monkeypatch.setattr(work, lambda *_args, **_named: pytest.fail("worked before refusing"))
    message = refuse(capsys, tmp_path, *command, str(path), "--out", str(out))
    assert f"--out {str(out)[:200]}" in message
    assert "name a directory" in message


def test_failed_writing_leaves_nothing(tmp_path, write, textbook, capsys) -> None:
    """Where one of the files cannot be written none is, and a folder made for them is gone again."""
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    message = refuse(capsys, tmp_path, str(write(textbook)), "--out", str(tmp_path / "out"), answered=True)
    assert "report.html is a directory there" in message


def test_failed_writing_leaves_no_new_folder(tmp_path, write, textbook, monkeypatch, capsys) -> None:
    """A disk that is full from the second file on leaves neither the first one nor the new folders."""

    def fail(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scenarios.results.outcome_files.write_perfetto", fail)
    args = (str(write(textbook)), "--out", str(tmp_path / "a" / "out"))
    assert "no space left" in refuse(capsys, tmp_path, *args, answered=True)


def test_disk_that_fills_up_while_writing_is_reported(tmp_path, write, textbook, capsys, monkeypatch) -> None:
    """An error of the file system during writing is a message too."""

    def fail(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scenarios.workloads.workload.Outcome.write", fail)
    out = tmp_path / "out"
    assert f"--out {out}: nothing can be written in {out}: no space left" in refuse(
        capsys, tmp_path, str(write(textbook)), "--out", str(out), answered=True
    )


@pytest.mark.parametrize(("args", "rule", "remedy"), [
    (["exectue"], "'exectue' is neither a command nor a scenario file", "the command execute"),
    (["--jsn", "x.yaml"], "No such option", "--json"),
    (["compare", "a", "b", "--fail-above", "10"], "'10' is not a percentage", "10%"),
    (["compare", "a", "b", "--fail-above", "ten%"], "'ten%' is not a percentage", "10%"),
    (["validate", "--data", "x.csv"], "one table", "exactly one"),
    (["list", "node"], "node", "nodes"),
    (["a.yaml", "--out", ""], "the name is empty", "name a directory"),
])  # fmt: skip
def test_bad_command_line_is_refused(tmp_path, capsys, args: list[str], rule: str, remedy: str) -> None:
    """Mistyped commands and options are answered with what they could have been."""
    message = refuse(capsys, tmp_path, *args)
    assert rule in message
    assert remedy in message


def test_mistyped_scenario_names_the_nearest(tmp_path, capsys, monkeypatch) -> None:
    """A bare word like a scenario's name is answered with its file."""
    monkeypatch.chdir(ROOT)
    assert "did you mean the scenario quickstart?" in refuse(capsys, tmp_path, "quikstart")


def test_installed_command_leaves_with_exit_code_2(tmp_path, write) -> None:
    """The real process: message on standard error, exit code 2, no traceback, nothing on standard output."""
    path = write("name: [\n")
    run = subprocess.run(
        [sys.executable, "-c", "from scenarios.cli import main; main()", str(path), "--out", str(tmp_path / "out")],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith(f"error: {path}:2: this is not YAML")
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("args", [["schema"], ["list", "precisions"], ["list", "precisions", "--json"]])
def test_output_that_takes_nothing_is_reported(args: list[str]) -> None:
    """Where standard output is a full disk, the message says so; short outputs that wait in a buffer included."""
    command = [sys.executable, "-c", "from scenarios.cli import main; main()", *args]
    with open("/dev/full", "w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False, timeout=60)
    assert run.returncode == 2
    assert run.stderr == "error: standard output: no space left on device;\n    write to another place\n"


def test_ranks_without_folding_are_bounded(tmp_path, write, capsys, monkeypatch) -> None:
    """More ops than a computer simulates one by one are refused, with their number."""
    monkeypatch.setattr("scenarios.workloads.steps.running.MAX_UNFOLDED_OPS", 1000)
    message = refuse(capsys, tmp_path, str(write()), "--no-fold")
    assert "--no-fold: 1,536 ranks have 44,584,320 ops in all, more than 1,000;" in message
    assert "leave it out" in message


def test_memory_that_runs_out_is_reported(tmp_path, write, capsys, monkeypatch) -> None:
    """Where Python gets no more memory, the message says so."""

    def fail(*_args: object, **_named: object) -> None:
        raise MemoryError

    monkeypatch.setattr("scenarios.workloads.training.workload.simulate", fail)
    assert "this takes more memory than there is" in refuse(capsys, tmp_path, str(write()))


def test_timelines_that_do_not_compare_are_named(tmp_path, capsys) -> None:
    """Each file is a timeline, but there is nothing to compare: both are named."""
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_timeline(TimelineBuilder().build(), first)
    write_timeline(TimelineBuilder().build(), second)
    message = refuse(capsys, tmp_path, "compare", str(first), str(second))
    assert f"{first}, {second}: the first timeline has no ops" in message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_starter_that_does_not_fit_leaves_no_file(tmp_path, capsys, monkeypatch) -> None:
    """Where the disk has no room for the starter file, none is left behind."""
    path, real_open = tmp_path / "my.yaml", Path.open

    def open_full(file: Path, mode: str, **options: str) -> object:
        real_open(file, mode, **options).close()
        return open("/dev/full", "w")

    monkeypatch.setattr(Path, "open", open_full)
    assert "cannot be written: no space left" in refuse(capsys, tmp_path, "new", str(path))
