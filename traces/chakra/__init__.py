"""Execution traces of MLCommons Chakra: the ops of every rank and their dependencies."""
