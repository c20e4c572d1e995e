"""The schema of scenario files: keys, types, limits and defaults.

Types are strict: ``"8"``, ``8.0`` and ``true`` are not 8. Unknown keys are refused. Quantities with a dimension
are text with a unit. Rules between keys are checked where the keys' values are used, in the loader.
"""
