"""Modules that are loaded when one of their names is first used: few commands need what they hold.

Inside ``loading_on_use``, an import of such a module as a module (``from scenarios.console import blocks``)
makes it known, and no more. Its file is read and run when a name is first asked for (``blocks.print_blocks``). So
``from scenarios.console.blocks import print_blocks``, or a name of it in an annotation that is no text, loads it at
once, as everywhere else. Nothing else changes: the imports stay where readers and type checkers look for them.

A package can wait too. Its modules are imported as usual, and its own file, ``__init__.py``, is run when a name of the
package is first asked for. SimPy's asks for its version among all installed packages, which takes longer than the two
modules of it that the event loop needs. That of ``numpy.random`` loads generators that nothing here asks for.

Modules of Python and of other packages wait too, where what imports them seldom needs them: NumPy's texts of help, a
tenth of its import, what it shares with ctypes, and msgspec's other formats. Some of these are imported name by name.
Where such a name is only ever called, as ``randbits`` of ``secrets`` is, which asks for OpenSSL, a function takes its
place that loads the module when it is called. And where a small module has the same, the name comes from there. After a
command, code in its process gets all names from the modules themselves.

``importlib.util.LazyLoader`` does the same but for two things: before Python 3.12 a second thread may see a module
half loaded, and a module that failed to load is taken for loaded afterwards.
"""

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from threading import RLock
from types import ModuleType
from typing import Any, Final

from scenarios.package_modules import PackageModules

ON_USE: Final = frozenset({
    "base64",
    "costmodels.calibration.document",
    "costmodels.collectives.catalogue",
    "costmodels.collectives.steps",
    "costmodels.collectives.stepwise",
    "difflib",
    "gettext",
    "json",
    "linecache",
    "msgspec.inspect",
    "msgspec.json",
    "msgspec.msgpack",
    "msgspec.toml",
    "msgspec.yaml",
    "numpy._core._add_newdocs",
    "numpy._core._add_newdocs_scalars",
    "numpy._core._dtype_ctypes",
    "numpy._core._internal",
    "numpy._typing",
    "numpy.lib.format",
    "numpy.lib.introspect",
    "numpy.lib.mixins",
    "numpy.lib.npyio",
    "numpy.lib.scimath",
    "numpy.lib.stride_tricks",
    "numpy.linalg",
    "numpy.random",
    "numpy.typing",
    "pickle",
    "random",
    "scenarios.choices.decide",
    "scenarios.choices.operators",
    "scenarios.commands.shared.bar",
    "scenarios.console.blocks",
    "scenarios.console.terminal",
    "scenarios.reading.actions",
    "scenarios.reading.clusters.profile_file",
    "scenarios.reading.documents.named_file",
    "scenarios.reading.documents.other_names",
    "scenarios.reading.documents.value_list",
    "scenarios.reading.models.hub",
    "scenarios.reading.models.huggingface",
    "scenarios.reading.models.moe_systems",
    "scenarios.reading.sections.json_schema",
    "scenarios.reading.sequence_parallel",
    "scenarios.reading.token_slices",
    "scenarios.report.blocks",
    "scenarios.report.charts.gantt",
    "scenarios.report.charts.packed_lanes",
    "scenarios.report.charts.svg_plot",
    "scenarios.report.charts.thumbnail",
    "scenarios.report.pages.run_page",
    "scenarios.report.slots.shown_schedule",
    "scenarios.results.folder",
    "scenarios.summaries.point_names",
    "scenarios.summaries.sweep",
    "scenarios.workloads.executing",
    "scenarios.workloads.steps.advising.advise",
    "scenarios.workloads.steps.findings.changes",
    "scenarios.workloads.steps.forced_routing",
    "scenarios.workloads.steps.last_plan",
    "scenarios.workloads.steps.schedule",
    "scenarios.workloads.steps.swept",
    "scenarios.workloads.training.changes.against_memory",
    "scenarios.workloads.training.changes.against_time",
    "scenarios.workloads.training.changes.causes",
    "scenarios.workloads.training.goal",
    "scenarios.workloads.training.lock_free",
    "scenarios.workloads.training.long_run.reading",
    "scenarios.workloads.training.long_run.saving",
    "scenarios.workloads.training.long_run.summarise",
    "scenarios.workloads.training.placing_registry",
    "secrets",
    "sim.cluster.host_paths",
    "sim.cluster.levelling",
    "sim.cluster.reduction_tree",
    "sim.cluster.topology.fabrics.torus",
    "sim.cluster.topology.max_flow",
    "sim.cluster.topology.parse",
    "sim.engine.findings.timeline",
    "sim.engine.folding.around",
    "sim.engine.folding.slack",
    "sim.engine.folding.turns",
    "sim.engine.prices.host",
    "sim.engine.running.again",
    "sim.engine.running.deadlock",
    "sim.engine.running.leads",
    "sim.engine.running.rest_of_steps",
    "sim.engine.running.stretches",
    "sim.engine.uncertainty.generators",
    "sim.memory.replay",
    "sim.moe.balancing.replicas",
    "sim.moe.sources",
    "sim.plan.facts.alike",
    "sim.plan.facts.content",
    "sim.plan.facts.rank_work",
    "sim.plan.functions.assigned_gradients",
    "sim.plan.functions.cached_tokens",
    "sim.plan.functions.experts",
    "sim.plan.functions.float8",
    "sim.plan.functions.ring_linear",
    "sim.plan.functions.split_linear",
    "sim.plan.functions.token_slices",
    "sim.plan.session.observations",
    "sim.plan.session.protocol",
    "sim.plan.session.residents",
    "sim.reliability.study",
    "sim.training.data.offload",
    "sim.training.data.operators",
    "sim.training.data.segments",
    "sim.training.data.sharding",
    "sim.training.data.tiered",
    "sim.training.gates.best_scores",
    "sim.training.gates.near_experts",
    "sim.training.gates.other_rules",
    "sim.training.layers.experts",
    "sim.training.layers.latent_attention",
    "sim.training.layers.node_copies",
    "sim.training.layers.rank_routing",
    "sim.training.local.builder",
    "sim.training.pipeline.evaluate",
    "sim.training.pipeline.greedy",
    "sim.training.pipeline.split",
    "sim.training.pipeline.taking_turns",
    "sim.training.sequence.key_exchange",
    "sim.training.sequence.ring_self_attention",
    "sim.training.sequence.two_level",
    "sim.training.sequence.ulysses",
    "sim.training.steps.delayed",
    "sim.training.tensor.three_dimensional",
    "sim.training.tensor.two_and_a_half_dimensional",
    "sim.training.tensor.two_dimensional",
    "simpy",
    "textwrap",
    "tokenize",
    "traces.timeline",
    "typing_extensions",
    "yaml",
    "yaml.composer",
    "yaml.emitter",
    "yaml.parser",
    "yaml.reader",
    "yaml.scanner",
})  # fmt: skip
"""What only people's output or a mistyped name needs, techniques that few scenarios use, and files of packages."""

CALLED: Final = frozenset({
    "numpy.linalg.eigvals",
    "numpy.linalg.inv",
    "numpy.linalg.lstsq",
    "numpy.linalg.matrix_power",
    "secrets.randbits",
    "typing_extensions.get_type_hints",
    "yaml.composer.ComposerError",
    "yaml.emitter.EmitterError",
    "yaml.parser.ParserError",
    "yaml.reader.ReaderError",
    "yaml.scanner.ScannerError",
})  # fmt: skip
"""Names of these modules that others import, and do nothing with but call them."""

INSTEAD: Final = {
    "gettext.gettext": "scenarios.untranslated",
    "gettext.ngettext": "scenarios.untranslated",
    "numpy._typing.NDArray": "scenarios.array_types",
    "numpy.typing.ArrayLike": "scenarios.array_types",
    "numpy.typing.NDArray": "scenarios.array_types",
    "typing_extensions.NotRequired": "typing",
    "typing_extensions.Required": "typing",
}
"""Names of these modules that others import, and the modules from which they get them instead."""

OF_MODULES: Final = frozenset({"yaml"})
"""Packages of which others ask for modules by attribute, without an import: each is imported when it is asked for."""

_OF_IMPORT: Final = frozenset({"__builtins__", "__cached__", "__file__", "__path__"})
"""Names that Python gives a module when it imports or runs it, and asks for before."""


@contextmanager
def loading_on_use(names: Collection[str] = ON_USE) -> Iterator[None]:
    """Let modules of these names, imported here for the first time, be loaded when they are first used."""
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Finds modules of packages, and puts off loading those of the given names, whosever they are."""

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._modules = names, PackageModules()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, with a loader that waits if it is one of these; None: Python finds it."""
        spec = self._modules.find_spec(fullname, path)
        if fullname not in self._names:
            return spec
        spec = spec or PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Waiting(spec.loader.name, spec.loader.path)
        return spec


class _Waiting(SourceFileLoader):
    """Loads a module when one of its names is first asked for, once, by whichever thread asks first."""

    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._lock, self._has_begun = RLock(), False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that asks for its own names."""
        return _Unread(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing yet."""

    def load(self, module: ModuleType, spec: ModuleSpec) -> None:
        """Read and run the file, unless this has been done or begun. Raises what the file raises, at every use."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            try:
                super().exec_module(module)
            except BaseException:
                self._has_begun = False
                raise
            module.__class__, spec.loader = ModuleType, SourceFileLoader(self.name, self.path)


class _Unread(ModuleType):
    """A module whose file has not been read."""

    def __getattr__(self, name: str) -> Any:
        """Return a name of the module, which is loaded first; names that Python gives modules load nothing."""
        full_name = f"{self.__name__}.{name}"
        if any(isinstance(finder, _Finder) for finder in sys.meta_path):
            if full_name in CALLED:
                return partial(_call, self, name)
            if full_name in INSTEAD:
                return getattr(import_module(INSTEAD[full_name]), name)
            if self.__name__ in OF_MODULES and name not in _OF_IMPORT:
                with suppress(ModuleNotFoundError):
                    return import_module(full_name)
        if name not in _OF_IMPORT:
            _load(self)
        if name in self.__dict__:
            return self.__dict__[name]
        message = f"module {self.__name__!r} has no attribute {name!r}"
        raise AttributeError(message)


def _call(module: ModuleType, name: str, /, *args: Any, **options: Any) -> Any:
    """Call what a module defines under a name; the module is loaded first."""
    _load(module)
    return getattr(module, name)(*args, **options)


def _load(module: ModuleType) -> None:
    """Load a module if it waits."""
    spec = module.__spec__
    if spec is not None and isinstance(spec.loader, _Waiting):
        spec.loader.load(module, spec)
