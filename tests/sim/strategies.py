"""Random jobs that the property tests draw from."""

from typing import Any

from hypothesis import strategies as st

from sim.plan.program import Plan
from tests.sim.jobs import GPT, LLAMA, dense_plan

NODES = ("dgx-a100-80g", "cloud-a100-100g")
"""One adapter per device, and one adapter per node."""

AXIS_ORDERS = (("pp", "dp", "tp"), ("dp", "pp", "tp"), ("pp", "tp", "dp"), ("tp", "dp", "pp"))
WIDE = {"hidden_size": 1024, "sequence_length": 512, "vocab_size": 4096, "ffn_hidden_size": 4096}


@st.composite
def dense_keys(draw: Any, most_ranks: int = 8) -> dict[str, Any]:
    """Draw the keys of a dense job: any techniques together, on at most ``most_ranks`` ranks."""
    tp, pp, dp = draw(
        st.sampled_from([
            (t, p, d) for t in (1, 2, 4) for p in (1, 2, 3) for d in (1, 2, 3) if t * p * d <= most_ranks
        ])
    )  # fmt: skip
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b"] if pp > 1 else ["gpipe", "1f1b"]))
    v = 2 if schedule == "interleaved_1f1b" else 1
    model = draw(st.sampled_from([GPT, LLAMA])) | {"tied_embeddings": draw(st.booleans()), "num_layers": pp * v + 1}
    return {
        "tp": tp, "pp": pp, "dp": dp, "schedule": schedule, "virtual_stages": v,
        "m": pp * draw(st.integers(1, 2)) if v > 1 else draw(st.integers(1, 4)),
        "b": draw(st.integers(1, 2)),
        "model": model | (WIDE if draw(st.booleans()) else {}),
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "scatter_gather": draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "precision": draw(st.sampled_from(["bf16", "fp32"])),
        "zero_stage": draw(st.integers(0, 1)),
        "overlap_gradient_sync": draw(st.booleans()),
        "bucket_bytes": draw(st.sampled_from([0, 20_000])),
        "axis_order": draw(st.sampled_from(AXIS_ORDERS)),
    }  # fmt: skip


def dense_plans(most_ranks: int = 8) -> st.SearchStrategy[Plan]:
    """Draw the plans of such jobs."""
    return dense_keys(most_ranks).map(lambda keys: dense_plan(**keys))
