"""Context parallelism: one class per method by which ranks share sequences."""
