"""State of a training in tiers of memory that threads move: a file of pages, and an optimizer of its own pace."""
