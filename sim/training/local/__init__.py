"""Local updates: every block of layers learns from its own loss (Laskin et al. 2020).

Source: "Parallel Training of Deep Networks with Local Updates".
"""
