"""Replay of measured runs: a profile becomes a graph of dependencies, whose times can be changed."""
