"""Where time passes: streams, activities, shared resources, on SimPy."""
