"""The keys of files of embedding tables, and of their results."""

RECOMMENDATION_KEYS = {
    *("name", "seed", "workload", "tables", "embedding_dim"),
    *(f"trace.{key}" for key in ("batch_size", "num_batches", "num_unmeasured", "file")),
    *(f"cache.{key}" for key in ("fraction", "policy", "warm_up", "served")),
    *(f"parameter_server.{key}" for key in ("workers", "consistency", "slack", "read_bound", "write_bound", "counted")),
    "parameter_server.relative_step_times",
    *("cache.order", "cache.host_bandwidth", "sharding"),
    *(f"model.{key}" for key in ("name", "num_numbers", "bottom", "hidden", "num_cross_layers")),
}

RECOMMENDATION_TABLE = {"name", "num_rows", "num_lookups", "zipf"}

RECOMMENDATION_SUMMARY = {
    *("schema", "scenario", "seed", "policy", "num_rows", "cache_rows", "table_bytes", "cache_bytes"),
    *("hit_rate", "unique_hit_rate", "static_hit_rate", "unique_rows_per_batch", "rows_in_per_batch"),
    *("rows_out_per_batch", "in_bytes_per_batch", "out_bytes_per_batch"),
    *(f"tables.{key}" for key in ("table", "num_rows", "num_lookups", "hit_rate")),
    *(f"over_time.{key}" for key in ("first_batch", "hit_rate")),
    *("parameter_server", "parameter_server.num_workers", "parameter_server.consistency"),
    *(f"parameter_server.{key}" for key in ("read_bound", "write_bound", "pulled_fraction", "stale_fraction")),
    *(f"parameter_server.{key}" for key in ("pushed_fraction", "evicted_fraction", "rows_of_uncached")),
    *(f"parameter_server.{key}" for key in ("bytes_of_uncached", "sent_bytes_per_step", "received_bytes_per_step")),
    *("parameter_server.flushed_rows", "step"),
}

RECOMMENDATION_STEP = {
    *("batch", "num_ranks", "iteration_time_s", "samples_per_s", "hit_rate", "computing_s", "waiting_s"),
    *("critical_path_s", "peak_memory_bytes", "memory_capacity_bytes", "host_memory_bytes"),
    *("host_memory_capacity_bytes", "fits_memory"),
}

RECOMMENDATION_ROW = {
    *("cache_rows", "hit_rate", "unique_hit_rate", "moved_bytes_per_batch", "step_time_s", "samples_per_s"),
}
