"""Reading of the model that a scenario describes: a transformer with whatever layers it has."""

from collections.abc import Callable
from typing import Any, Final

from scenarios.errors import ScenarioError
from scenarios.reading.documents.located import located
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.models.written_out import written_out
from scenarios.reading.schema.model import (
    ExpertsSection,
    GptModel,
    HuggingFaceModel,
    LlamaModel,
    Model,
    PresetModel,
)
from scenarios.reading.sections.section import values_of, written_keys
from scenarios.workloads.steps import forced_routing
from sim.moe.balancing.placement_policy import MovingExperts
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.latent import LatentAttention
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.models.window import SlidingWindow

_OF_SLOTS: Final = ("capacity_factor", "capacity_rule")
"""Keys of experts that count slots."""


def read_transformer(
    document: Document, section: Model, seed: int, model_of: Callable[[Document], Model]
) -> tuple[Document, TransformerSpec]:
    """Return the model, and the document with a preset's or configuration's keys written out in it.

    ``model_of``: checks a document and returns its model.
    """
    if isinstance(section, PresetModel | HuggingFaceModel):
        document = written_out(document, section)
        section = model_of(document)
    if not isinstance(section, GptModel | LlamaModel):
        message = f"a preset may not name another one: {section}"
        raise TypeError(message)
    return document, _transformer(document, section, seed)


def _transformer(document: Document, section: GptModel | LlamaModel, seed: int) -> TransformerSpec:
    keys: dict[str, Any] = values_of(section)
    keys["num_kv_heads"] = section.num_kv_heads or section.num_heads
    keys["ffn_hidden_size"] = section.ffn_hidden_size or 4 * section.hidden_size
    with located(document):
        if "head_size" in keys:
            keys["own_head_size"] = keys.pop("head_size")
        if keys.get("sliding_window") is not None:
            keys["sliding_window"] = SlidingWindow(**keys["sliding_window"])
        if keys.get("latent_attention") is not None:
            keys["latent_attention"] = LatentAttention(**keys["latent_attention"])
        if section.experts is not None:
            _refuse_slots(document, section.experts)
            routing = forced_routing.routing_of(document, section.experts.routing, seed)
            cooling = forced_routing.dense_to_sparse_of(document, section.experts.dense_to_sparse)
            unread = _OF_SLOTS if section.experts.dispatch == "exact" else ()
            apart = {"routing", "dense_to_sparse", "placement", *unread}
            stated = {key: value for key, value in values_of(section.experts).items() if key not in apart}
            placement = section.experts.placement
            moving = None if placement is None else MovingExperts(**values_of(placement))
            experts = ExpertsSpec(**stated, routing=routing, dense_to_sparse=cooling, moving=moving)
            if moving is not None:
                experts.later(moving.steps - 1)  # refuses a recording of fewer steps
            keys["experts"] = experts
        return TransformerSpec(**keys)


def _refuse_slots(document: Document, section: ExpertsSection) -> None:
    """Raise ScenarioError where a scenario counts slots and has none; what its ``moe.system`` writes is a default."""
    if section.dispatch != "exact":
        return
    for key in _OF_SLOTS:
        path = ("model", "experts", key)
        if key in written_keys(section) and document.origin(path) != document.origin(("moe", "system")):
            rule = "it counts slots, and dispatch: exact has a row for each choice instead"
            remedy = "leave it out, or write dispatch: slots"
            raise ScenarioError(document.origin(path), ".".join(path), rule, remedy)
