"""The keys of files of embedding tables, services and inference, and of their results."""

RECOMMENDATION_KEYS = {
    *("name", "seed", "workload", "tables", "embedding_dim"),
    *(f"trace.{key}" for key in ("batch_size", "num_batches", "num_unmeasured", "file")),
    *(f"cache.{key}" for key in ("fraction", "policy", "warm_up", "served")),
    *(f"parameter_server.{key}" for key in ("workers", "consistency", "slack", "read_bound", "write_bound", "counted")),
    *(f"parameter_server.{key}" for key in ("relative_step_times", "servers", "dense")),
    *("cache.order", "cache.host_bandwidth", "sharding"),
    *(f"model.{key}" for key in ("name", "num_numbers", "bottom", "hidden", "num_cross_layers")),
}

RECOMMENDATION_TABLE = {"name", "num_rows", "num_lookups", "zipf", "drift"}

RECOMMENDATION_SUMMARY = {
    *("schema", "scenario", "seed", "policy", "num_rows", "cache_rows", "table_bytes", "cache_bytes"),
    *("hit_rate", "unique_hit_rate", "static_hit_rate", "unique_rows_per_batch", "rows_in_per_batch"),
    *("rows_out_per_batch", "in_bytes_per_batch", "out_bytes_per_batch"),
    *(f"tables.{key}" for key in ("table", "num_rows", "num_lookups", "hit_rate", "recorded")),
    *(f"over_time.{key}" for key in ("first_batch", "hit_rate")),
    *("parameter_server", "parameter_server.num_workers", "parameter_server.consistency"),
    *(f"parameter_server.{key}" for key in ("read_bound", "write_bound", "pulled_fraction", "stale_fraction")),
    *(f"parameter_server.{key}" for key in ("pushed_fraction", "evicted_fraction", "rows_of_uncached")),
    *(f"parameter_server.{key}" for key in ("bytes_of_uncached", "sent_bytes_per_step", "received_bytes_per_step")),
    *("parameter_server.flushed_rows", "parameter_server.times", "step"),
}

SERVER_TIMES = {
    *("step_s", "samples_per_s", "pull_s", "local_s", "push_s", "uncached_step_s", "uncached_servers_step_s"),
}

RECOMMENDATION_STEP = {
    *("batch", "num_ranks", "iteration_time_s", "samples_per_s", "hit_rate", "computing_s", "waiting_s"),
    *("critical_path_s", "peak_memory_bytes", "memory_capacity_bytes", "host_memory_bytes"),
    *("host_memory_capacity_bytes", "fits_memory"),
}

RECOMMENDATION_ROW = {
    *("cache_rows", "hit_rate", "unique_hit_rate", "moved_bytes_per_batch", "step_time_s", "samples_per_s"),
}

INFERENCE_KEYS = {
    *(f"inference.{key}" for key in ("sequences", "microbatches", "prompt_tokens", "prompts", "output_tokens")),
    *(f"inference.{key}" for key in ("tokens_per_step", "precision", "cache_precision", "block_tokens")),
    *(f"parallel.{axis}.degree" for axis in ("tensor", "pipeline", "expert")),
}

INFERENCE_SUMMARY = {
    *("schema", "scenario", "seed", "num_devices", "num_replicas", "num_sequences", "output_tokens"),
    *("prefill_time_s", "time_per_output_token_s", "first_step_time_s", "last_step_time_s", "total_time_s"),
    *("output_tokens_per_s", "computing_s", "waiting_s", "critical_path_s"),
    *(f"memory.{key}" for key in ("peak_bytes", "capacity_bytes", "fits", "weights_bytes", "cache_bytes")),
    *(f"memory.{key}" for key in ("block_bytes", "kv_blocks", "free_kv_blocks")),
}

INFERENCE_ROW = {
    *("prefill_time_s", "time_per_output_token_s", "total_time_s", "output_tokens_per_s", "peak_memory_bytes"),
    "fits_memory",
}

SERVICE_KEYS = {
    *(f"requests.{key}" for key in ("trace", "num_requests", "rate", "concurrency", "burstiness", "prompt_tokens")),
    *(f"requests.{key}" for key in ("prompt_variation", "output_tokens", "output_variation")),
    *(f"service.{key}" for key in ("tensor_degree", "replicas", "precision", "batching", "max_sequences")),
    *(f"service.{key}" for key in ("max_tokens", "block_tokens", "memory_fraction", "activation_memory")),
    *(
        f"service.{key}"
        for key in ("cache_precision", "framework", "prompt_replicas", "sequence_overhead", "request_overhead")
    ),
    *("service.all_reduce_latency", "service.pipeline_degree", "service.expert_degree", "service.expert_messages"),
    *(f"service.{key}" for key in ("overhead", "router", "patience", "slo.ttft", "slo.tpot", "slo.share", "failures")),
    *(
        f"decoding.{key}"
        for key in ("method", "drafted", "tree", "acceptance", "hit_rates", "rank_ratio", "recorded", "draft_pass")
    ),
}

SERVICE_SUMMARY = {
    *("schema", "scenario", "seed", "num_requests", "num_finished", "num_refused", "num_cancelled"),
    *("num_replicas", "makespan_s", "output_tokens_per_s", "requests_per_s", "goodput_per_s", "met_slo_fraction"),
    *(f"{time}.{key}" for time in ("ttft_s", "tpot_s", "latency_s") for key in ("mean", "p50", "p90", "p99")),
    *(f"waits_s.{key}" for key in ("queue", "prefill", "preempted", "stalled", "moved", "decode")),
    *(
        "tokens_per_step",
        "preemptions",
        "kv_blocks",
        "kv_peak_fraction",
        "cached_fraction",
        "busy_fraction",
        "capacity",
    ),
}

SERVICE_ROW = {
    *("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "latency_p50_s"),
    *("output_tokens_per_s", "goodput_per_s", "met_slo_fraction", "mean_latency_s", "mean_ttft_s", "mean_tpot_s"),
}
