"""Renderers of blocks: pages, notebooks and short texts."""
