"""The loads of experts under a forced routing."""

from typing import Final

from costmodels.units import format_percent
from scenarios.report.blocks import Bars, Limit, Section, Series
from scenarios.report.causes import COMPUTING
from scenarios.report.words import waiting_words
from scenarios.summaries.steps.routing import RoutingSummary

MAX_EXPERTS: Final = 64


def experts_section(routing: RoutingSummary) -> Section:
    """Return a bar per expert of the layer whose ranks are loaded least evenly, the busiest first."""
    shares = sorted(enumerate(routing.layer_shares), key=lambda entry: (-entry[1], entry[0]))
    shown = shares[:MAX_EXPERTS]
    values = [100.0 * share for _, share in shown]
    words = [format_percent(share) for _, share in shown]
    bars = Bars(
        "experts", [f"expert {number}" for number, _ in shown], [Series("choices", COMPUTING[1], values, words)],
        "% of the layer's choices", limit=Limit(100.0 / len(shares), "even share"),
    )  # fmt: skip
    lead = (
        f"Layer {routing.uneven_layer}, in which the busiest rank has most beside the mean. On the mean of all layers "
        f"the busiest expert has {routing.expert_max_over_mean:.2f} times the mean load, and the busiest rank "
        f"{routing.rank_max_over_mean:.2f} times. Ranks with less to do wait for it in the experts' exchanges; "
        f"{waiting_words(routing)}."
    )
    left_out = len(shares) - len(shown)
    return Section(
        "How busy experts are", (bars,), lead, f"{left_out:,} less busy experts are not drawn." * bool(left_out)
    )
