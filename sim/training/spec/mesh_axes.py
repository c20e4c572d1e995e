"""The names of the axes of a training job's mesh."""

from typing import Final

PIPELINE_AXIS: Final = "pp"
DATA_AXIS: Final = "dp"
EXPERT_AXIS: Final = "ep"
"""The data-parallel ranks that share out experts; ``dp`` then counts how often each expert is there."""
CONTEXT_AXIS: Final = "cp"
TENSOR_AXIS: Final = "tp"
