"""Tables of measurements that were never made."""

from pathlib import Path

import pandas as pd

SOFTWARE = "  software: {launch: 100 us, native_launch: 50 us, unaligned_slowdown: 2.0}\n"
_STEPS = f"""\
citation: Nobody
source: Arithmetic
licence: facts
row: row
group: half
base:
  name: Small
  cluster: {{node: dgx-a100-80g, num_nodes: 1, devices_per_node: 1}}
  model: {{family: gpt, num_layers: 2, hidden_size: 2048, num_heads: 16, sequence_length: 512, vocab_size: 50257}}
  training: {{global_batch_size: 16, microbatch_size: 1, precision: fp16}}
{SOFTWARE}columns: {{model.num_layers: num_layers, training.microbatch_size: microbatch_size}}
measured: {{prediction: iteration_time_s, unit: s, columns: [{{column: time}}]}}
thresholds: {{mean: 0.05, worst: 0.12}}
"""


def table_of_steps(folder: Path, rows: str, *replacements: tuple[str, str]) -> Path:
    """Write steps of a small model on one A100, and their sidecar with other words; return the sidecar's path.

    ``rows``: lines of number, layers, size of a micro-batch, half and seconds.
    """
    text, path = _STEPS, folder / "steps.yaml"
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    path.with_suffix(".csv").write_text(f"row,num_layers,microbatch_size,half,time\n{rows}", encoding="utf-8")
    return path


def two_systems(folder: Path) -> Path:
    """Write 20 sizes of all_reduce and all_to_all on 8 devices of two systems, `one` and `other`."""
    columns = ["system", "collective", "n_gpus", "n_nodes", "bytes", "kind", "time_s"]
    rows = [
        (system, kind, 8, 1, 1 << power, "measured", 20e-6 + (1 << power) / 200e9)
        for system in ("one", "other")
        for kind in ("all_reduce", "alltoall")
        for power in range(10, 30)
    ]
    path = folder / "collectives.csv"
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path
