"""Seconds and bytes from plain numbers: kernels, collectives, memory, the hardware catalogue."""
