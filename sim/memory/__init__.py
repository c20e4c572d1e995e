"""Memory in tiers: when parameters move between a host and its device, and the options of the managers."""
