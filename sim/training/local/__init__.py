"""Local updates: every block of layers learns from a loss of its own (Laskin et al. 2020, "Parallel Training of Deep
Networks with Local Updates").
"""
