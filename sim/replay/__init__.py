"""Measured runs run again: a profile becomes a graph of what waited for what, and its times may be changed."""
