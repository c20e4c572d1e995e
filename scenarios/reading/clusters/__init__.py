"""Clusters: machines and their profiles, files that hold a topology, and the framework."""
