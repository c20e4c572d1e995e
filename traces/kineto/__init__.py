"""Traces of the PyTorch profiler (Kineto): reading, alignment over ranks, breakdown, conversion to a Timeline."""
