"""Documents: text and YAML with the place of each value, overrides of them, and their check against a schema."""
