"""Recordings: profiles of the PyTorch profiler, replays at other speeds, and doubts about them."""
