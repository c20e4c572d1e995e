"""Gates of layers of experts: one class each, with its rules, its slots, and its op in a plan."""
