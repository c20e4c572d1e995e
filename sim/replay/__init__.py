"""Replay of measured runs: a profile becomes a graph of dependencies, and its times may be changed."""
