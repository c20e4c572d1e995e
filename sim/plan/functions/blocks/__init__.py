"""Differentiable functions of tensors that lie in blocks on a mesh of several axes."""
