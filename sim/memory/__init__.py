"""Memory in tiers: when parameters move between a device and its host, and how tensors lie in pages."""
