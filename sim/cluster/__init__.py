"""The simulated hardware: nodes, devices, adapters, and where ranks lie on them."""
