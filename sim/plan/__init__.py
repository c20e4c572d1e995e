"""The shared vocabulary: mesh, layout, buffer, op, program, plan, check.

A plan says, for every rank, which operations run on which stream, on which buffers.
It holds no time, no policy and no torch.
"""
