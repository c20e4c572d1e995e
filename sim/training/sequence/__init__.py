"""How ranks share sequences: one class per method of context parallelism."""
