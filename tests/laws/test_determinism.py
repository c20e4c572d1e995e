"""Order is part of the result: same seed, same bytes, whatever Python's hash seed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from sim.engine.findings.timeline import timeline
from sim.engine.running.simulate import simulate
from tests.sim.jobs import GPT, dense_plan, pricing_on

ROOT = Path(__file__).resolve().parents[2]
JOBS = {
    "one-adapter": ("cloud-a100-100g", {"tp": 2, "pp": 2, "dp": 4, "m": 4, "bucket_bytes": 20_000}),
    "interleaved": (
        "dgx-a100-80g",
        {
            "tp": 4, "pp": 2, "dp": 2, "m": 4, "schedule": "interleaved_1f1b", "virtual_stages": 2,
            "sequence_parallel": True, "recompute": "full", "zero_stage": 1, "model": GPT | {"num_layers": 5},
        },
    ),
    "eight-bits": ("hgx-h100", {"dp": 4, "m": 2, "zero_stage": 3, "precision": "fp8"}),
}  # fmt: skip


def digest(job: str) -> str:
    """Return a hash of all times, memory and links of a job's timeline, and of its plan in words."""
    node, keys = JOBS[job]
    plan = dense_plan(**keys)
    table = timeline(simulate(plan, pricing_on(node, plan.mesh.size)), "op")
    found = hashlib.sha256(repr(plan).encode())
    for words in (table.stream, table.name, table.kind, table.group):
        found.update(repr(words.values).encode() + words.codes.tobytes())
    columns = (table.rank, table.start_s, table.end_s, table.microbatch, table.stage, table.bytes, table.flop)
    for column in (*columns, table.memory.time_s, table.memory.bytes, table.messages.send, table.messages.collective):
        found.update(column.tobytes())
    return found.hexdigest()


def test_timelines_do_not_depend_on_the_hash_seed() -> None:
    """A process with another hash seed gives the plans and timelines of this one to the last bit."""
    code = "from tests.laws.test_determinism import JOBS, digest; print(*map(digest, JOBS))"
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = os.environ | {"PYTHONHASHSEED": other, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == list(map(digest, JOBS))
