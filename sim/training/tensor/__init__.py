"""Tensor parallelism: each method is one object, which knows its mesh axes, its layouts and its products."""
