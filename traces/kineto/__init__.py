"""Traces of the PyTorch profiler (Kineto): read, aligned over ranks, broken down, and made into a Timeline."""
