"""Data parallelism: gradient buckets, their synchronisation, the optimizer."""
