"""The simulated hardware: nodes, devices, adapters, and the placement of ranks on devices."""
