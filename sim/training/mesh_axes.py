"""The names of the axes of a training job's mesh."""

from typing import Final

PIPELINE_AXIS: Final = "pp"
DATA_AXIS: Final = "dp"
TENSOR_AXIS: Final = "tp"
