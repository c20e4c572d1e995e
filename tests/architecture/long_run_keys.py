"""The keys of long runs: in a scenario, and in a summary."""

LONG_RUN_KEYS = (
    *("reliability.mtbf_per_device", "reliability.mtbf_per_nic", "reliability.mtbf_per_node"),
    *("reliability.mtbf_of_job", "reliability.checkpoint.save", "reliability.checkpoint.interval"),
    *(f"reliability.checkpoint.drives.{key}" for key in ("capacity", "bandwidth", "latency")),
    *(
        "reliability.checkpoint.over_steps",
        "reliability.checkpoint.stall",
        "reliability.restart",
        "reliability.duration",
        "reliability.steps",
    ),
    *("reliability.spares.num_nodes", "reliability.spares.repair", "reliability.replications"),
)

RELIABILITY = {
    *("mtbf_s", "stall_s", "background_s", "restart_s", "interval_s", "interval_steps"),
    *("best_interval_s", "young_interval_s", "daly_interval_s", "replications"),
    *("goodput.mean", "goodput.low", "goodput.high", "goodput.standard_error"),
    *(f"{key}.{part}" for key in ("elapsed_s", "steps", "interruptions") for part in ("mean", "low", "high")),
    *("interruptions_by_part.device",),
    *(f"time_s.{key}" for key in ("useful", "lost", "checkpoint", "restart", "waiting")),
    *("expected.goodput", "expected.elapsed_s", "expected.interruptions", "saving"),
}

SAVING = {"over_steps", "snapshot_s", "step_s", "writing_alone_s", "node_bytes", "node_host_bytes"}
