"""Context parallelism as a scenario says it: what is refused, and what the answer shows."""

import json
from pathlib import Path

import pytest

from scenarios.cli import main

SCENARIO = """\
name: shared sequences
seed: 0
cluster: {node: hgx-h100, num_nodes: 1}
model: {family: llama, num_layers: 2, hidden_size: 1024, num_heads: 8, num_kv_heads: 4, ffn_hidden_size: 2048,
        sequence_length: 32768, vocab_size: 32000, attention: flash}
training: {global_batch_size: 2, microbatch_size: 1, precision: bf16}
parallel:
  context: {degree: 4, method: all_gather}
  tensor: {degree: 2, sequence_parallel: true}
  pipeline: {degree: 1, schedule: 1f1b}
  data: {degree: 1, zero_stage: 1}
"""


def refusal(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    """Return what the command line says when it refuses a file."""
    with pytest.raises(SystemExit) as caught:
        main([str(path)])
    output = capsys.readouterr()
    assert caught.value.code == 2
    assert "Traceback" not in output.err
    return output.err


@pytest.mark.parametrize(("old", "new", "line", "key", "rule", "remedy"), [
    ("sequence_length: 32768", "sequence_length: 32762", 8, "parallel.context.degree",
     "sequence_length 32762 does not divide into 2 x 4 chunks, two per rank", "whose double divides 32762"),
    ("attention: flash", "attention: core", 5, "model.attention", "fused attention", "attention: flash"),
    ("zero_stage: 1", "osdp: {}", 11, "parallel.data.osdp", "over data-parallel ranks alone", "zero_stage: 3"),
    ("zero_stage: 1", "zero_stage: 3, shard_degree: 5", 11, "parallel.data.shard_degree", "groups of 5 ranks do not",
     "write 1"),
    ("schedule: 1f1b", "schedule: terapipe", 10, "parallel.pipeline.schedule", "slices", "schedule: 1f1b"),
    ("schedule: 1f1b", "schedule: local", 10, "parallel.pipeline.schedule", "local is not built", "schedule: 1f1b"),
    ("zero_stage: 1}", "zero_stage: 1}\n  axis_order: [pp, dp, tp]", 12, "parallel.axis_order", "axis cp", "leave"),
    ("zero_stage: 1}", "zero_stage: 1}\n  axis_order: [pp, dp, cp, cp]", 12, "parallel.axis_order", "once", "tp once"),
    ("method: all_gather", "method: ulysses", 8, "parallel.context.degree", "share out evenly the 2 heads",
     "write 2, or"),
    ("method: all_gather", "method: ulysses, layout: contiguous", 8, "parallel.context.layout", "no such option",
     "another method"),
    ("method: all_gather", "method: ring_self_attention", 5, "model.attention", "keeps the scores", "attention: core"),
    ("method: all_gather", "method: two_level, inner_degree: 4", 8, "parallel.context.inner_degree",
     "two or more groups of 4", "write 2"),
    ("method: all_gather", "inner_degree: 3", 8, "parallel.context.inner_degree", "no such option", "leave it out"),
    ("method: all_gather", "method: ring", 8, "parallel.context.method", "(text) is not one of",
     "all_gather"),
])  # fmt: skip
def test_what_is_not_built_is_refused_where_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, line: int, key: str, rule: str, remedy: str
) -> None:
    """File, line, key, rule and remedy, exit code 2."""
    path = tmp_path / "my.yaml"
    path.write_text(SCENARIO.replace(old, new))
    message = refusal(capsys, path)
    assert f"{path}:{line}: {key}" in message
    assert rule in message
    assert remedy in message


def test_tokens_that_tensor_parallel_ranks_cannot_share_are_refused(tmp_path, capsys) -> None:
    """A rank's 24 / 4 tokens do not divide over 4 tensor-parallel ranks, though the sequence does."""
    path = tmp_path / "my.yaml"
    text = SCENARIO.replace("sequence_length: 32768", "sequence_length: 24").replace("degree: 2, s", "degree: 4, s")
    path.write_text(text.replace("num_nodes: 1", "num_nodes: 2"))
    assert "a rank's 6 tokens do not divide over 4 tensor-parallel ranks" in refusal(capsys, path)


def test_answer_has_one_role_for_all_that_share_a_sequence(tmp_path, capsys) -> None:
    """The causal mask makes no rank compute longer than another, and all wait for keys and values."""
    path = tmp_path / "my.yaml"
    path.write_text(SCENARIO)
    with pytest.raises(SystemExit) as caught:
        main([str(path), "--json"])
    assert caught.value.code == 0
    summary = json.loads(capsys.readouterr().out)
    (role,) = summary["roles"]
    assert (role["role"], role["num_ranks"]) == ("all", 8)
    assert role["exposed_s"]["cp"] > 0


def test_a_ring_hides_behind_computing_what_gathers_do_not(tmp_path, capsys) -> None:
    """Both methods move as many bytes of keys and values forward; a ring's are hidden, and the step is shorter."""
    steps, waits = {}, {}
    for method in ("p2p", "all_gather"):
        path = tmp_path / f"{method}.yaml"
        path.write_text(SCENARIO.replace("method: all_gather", f"method: {method}"))
        with pytest.raises(SystemExit):
            main([str(path), "--json"])
        summary = json.loads(capsys.readouterr().out)
        steps[method] = summary["iteration_time_s"]
        exposed = (role["exposed_s"] for role in summary["roles"])
        waits[method] = sum(s for causes in exposed for name, s in causes.items() if name.startswith("cp"))
    assert waits["p2p"] < 0.1 * waits["all_gather"]
    assert steps["p2p"] < steps["all_gather"]
