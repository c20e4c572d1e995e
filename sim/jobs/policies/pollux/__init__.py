"""Pollux: a genetic search for the allocation with the largest mean speedup."""
