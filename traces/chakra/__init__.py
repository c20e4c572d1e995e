"""Execution traces of MLCommons Chakra: what every rank computes and sends, and what waits for what."""
