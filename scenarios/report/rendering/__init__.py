"""Blocks as a page."""
