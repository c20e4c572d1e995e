"""Recorded hit rates of drafts, a YAML file per model and text. ``backends/torch/decoding/recording`` writes them.

Each method has a mapping of its own; what else the file holds is its provenance.
"""

from collections.abc import Mapping
from math import fsum
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
import yaml
from msgspec import Meta, Struct

from traces.errors import TraceError

FOLDER: Final = Path(__file__).parent / "drafts"
MAX_BYTES: Final = 1 << 20
_ROUNDING: Final = 1e-2
_REMEDY: Final = "write it with python -m backends.torch.decoding.recording FILE"

Rate = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[float, Meta(ge=0.0, le=1e6)]
Rates = Annotated[tuple[Rate, ...], Meta(max_length=1024)]
Item = TypeVar("Item")
Few = Annotated[tuple[Item, ...], Meta(max_length=64)]


class RecordedSteps(Struct, frozen=True):
    """Recorded steps of a method. ``positions``: mean positions of a pass; ``lengths``: shares of 1, 2, ... tokens.

    ``frontiers``: mean number of a tree's nodes, depth by depth, after which the draft guessed; none for chains.
    """

    positions: Annotated[float, Meta(ge=1.0, le=1e6)]
    lengths: Annotated[tuple[Rate, ...], Meta(min_length=1, max_length=1024)]
    frontiers: Few[Count] = ()


class RecordedDrafts(Struct, frozen=True):
    """Recorded hit rates and steps of draft methods.

    ``tables``: for each tree method, hit rates by depth and rank, under the condition that the tokens before are right.
    ``acceptance``: for each chain method, the fraction of judged tokens that were accepted. ``trees``: for each tree
    method, its steps by the shape of the tree and its nodes. ``chains``: steps by method and drafted tokens.
    """

    tables: Mapping[str, tuple[tuple[float, ...], ...]]
    acceptance: Mapping[str, float]
    trees: Mapping[str, Mapping[tuple[str, int], RecordedSteps]]
    chains: Mapping[str, Mapping[int, RecordedSteps]]


class _Tree(Struct, frozen=True):
    """Steps of trees of a size, by shape."""

    nodes: Annotated[int, Meta(ge=1, le=1024)]
    static: RecordedSteps | None = None
    by_confidence: RecordedSteps | None = None
    reranked: RecordedSteps | None = None

    def by_shape(self) -> dict[tuple[str, int], RecordedSteps]:
        """Return the steps by the shape and the nodes."""
        shapes = {"static": self.static, "by_confidence": self.by_confidence, "reranked": self.reranked}
        return {(name, self.nodes): steps for name, steps in shapes.items() if steps is not None}


class _Method(Struct, frozen=True):
    """What a file has of a method: hit rates and trees, or a chain's acceptance and steps."""

    hit_rates: Few[Rates] = ()
    trees: Few[_Tree] = ()
    acceptance: Rate | None = None
    drafted: Annotated[int, Meta(ge=1, le=1024)] | None = None
    positions: float | None = None
    lengths: tuple[float, ...] = ()

    def steps(self) -> dict[tuple[str, int], RecordedSteps]:
        """Return the steps of all trees."""
        return {key: steps for tree in self.trees for key, steps in tree.by_shape().items()}

    def chain(self) -> dict[int, RecordedSteps]:
        """Return the steps of a chain, by its drafted tokens."""
        if self.drafted is None or self.positions is None:
            return {}
        return {self.drafted: msgspec.convert({"positions": self.positions, "lengths": self.lengths}, RecordedSteps)}


def recording_names() -> tuple[str, ...]:
    """Return the names of the packaged recordings."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def recorded_drafts(name: str) -> RecordedDrafts:
    """Return a packaged recording by its name."""
    return read_drafts(FOLDER / f"{name}.yaml")


def read_drafts(path: Path) -> RecordedDrafts:
    """Return a recording. Raises TraceError for a file that is none, or whose shares are not shares."""
    try:
        methods = msgspec.convert(_mappings(path), dict[str, _Method])
        found = RecordedDrafts(
            tables={name: of.hit_rates for name, of in methods.items() if of.hit_rates},
            acceptance={name: of.acceptance for name, of in methods.items() if of.acceptance is not None},
            trees={name: of.steps() for name, of in methods.items() if of.trees},
            chains={name: of.chain() for name, of in methods.items() if of.chain()},
        )
    except msgspec.ValidationError as error:
        raise TraceError(str(path), f"it is not a recording of drafts: {error}", _REMEDY) from error
    _check_shares(path, found)
    return found


def _mappings(path: Path) -> dict[str, object]:
    """Return the mappings of a file by their names."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise TraceError(str(path), f"a recording has at most {MAX_BYTES >> 20} MiB", _REMEDY)
        whole = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(str(path), f"the file cannot be read: {error}", _REMEDY) from error
    if not isinstance(whole, dict):
        raise TraceError(str(path), "a recording is a mapping", _REMEDY)
    return {name: of for name, of in whole.items() if isinstance(name, str) and isinstance(of, dict)}


def _check_shares(path: Path, found: RecordedDrafts) -> None:
    """Raise TraceError where guesses of a depth are right more than once, or shares of lengths are not all steps."""
    for name, table in found.tables.items():
        if any(fsum(rates) > 1.0 + _ROUNDING for rates in table):
            raise TraceError(str(path), "guesses of a depth are right more than once", _REMEDY, key=f"{name}.hit_rates")
    for kinds in (found.trees, found.chains):
        for name, recorded in kinds.items():
            for steps in recorded.values():
                if abs(fsum(steps.lengths) - 1.0) > _ROUNDING:
                    rule = f"shares of steps add up to {fsum(steps.lengths):.3f}, not to 1"
                    raise TraceError(str(path), rule, _REMEDY, key=f"{name}.lengths")
