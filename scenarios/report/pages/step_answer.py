"""The first screen of a report: time, memory, causes of waiting."""

from typing import Final

from costmodels.units import format_bytes, format_percent, format_rate, format_time, format_tokens_rate
from scenarios.report.blocks import Block, Card, Fact, Facts, Line, Only, Part, Piece, Section, SplitBar, Table
from scenarios.report.pages.advice_section import advice_facts
from scenarios.report.pages.long_run_section import long_run_card
from scenarios.report.words import counted, detail_rows, memory_words, room_words, spread_words, time_parts
from scenarios.summaries.steps.algorithm import algorithm_words
from scenarios.summaries.steps.role_names import fullest_row, row_name
from scenarios.summaries.steps.step import StepSummary

_DAY_S: Final = 86_400.0


def answer_cards(summary: StepSummary) -> tuple[Card, ...]:
    """Return the summary's step time, throughput, utilisation, memory against capacity, and goodput, if present."""
    interval = spread_words(summary.iteration_time_interval_s)
    cards = [Card("Time per step", format_time(summary.iteration_time_s), interval)]
    if other := algorithm_words(summary.algorithm):
        cards.append(Card("Algorithm", summary.algorithm, other, "bad"))
    if summary.tokens_per_s:
        a_day = f"{counted(summary.tokens_per_s * _DAY_S)} tokens a day"
        cards.append(Card("Throughput", format_tokens_rate(summary.tokens_per_s), a_day))
    if utilisation := _utilisation(summary):
        flop_rate, mfu, hfu = utilisation
        cards.append(Card("Model FLOP utilisation (MFU)", mfu, f"{flop_rate} per device, HFU {hfu}"))
    cards += _memory_cards(summary)
    if summary.reliability is not None:
        cards.append(long_run_card(summary.reliability))
    return tuple(cards)


def answer_facts(summary: StepSummary) -> tuple[Fact, ...]:
    """Return the same answers as lines of a terminal, with further facts about the step."""
    facts = [Fact("step time", _time_line(summary))]
    if other := algorithm_words(summary.algorithm):
        facts.append(Fact("algorithm", (Piece(summary.algorithm, "unusual"), f": {other}")))
    if summary.tokens_per_s:
        facts.append(Fact("throughput", format_tokens_rate(summary.tokens_per_s)))
    if utilisation := _utilisation(summary):
        flop_rate, mfu, hfu = utilisation
        facts.append(Fact("per device", f"{flop_rate} (MFU {mfu}, HFU {hfu})"))
    facts.append(Fact("memory", _memory_line(summary)))
    return (*facts, *_details(summary))


def spending_section(summary: StepSummary) -> Section:
    """Return the parts of the mean rank's step, the facts behind them, and the advice."""
    total_s = summary.iteration_time_s
    parts = tuple(
        Part(words, colour, part_s / total_s, (format_time(part_s), format_percent(part_s / total_s)))
        for (words, colour), part_s in time_parts(summary)
    )
    bar = SplitBar(parts, ("where the time goes", "per rank", "of the step"))
    advice = () if summary.advice is None else advice_facts(summary.advice, fits_memory=summary.fits_memory)
    rows = (*_details(summary), *advice)
    lead = "The mean over all ranks. What is not computing is waiting."
    blocks: tuple[Block, ...] = (bar, *_tensor_axes(summary), Only("page", (Facts(rows),)))
    return Section("What a rank spends the step on", blocks, lead)


def _tensor_axes(summary: StepSummary) -> tuple[Table, ...]:
    """Return what each axis of a tensor-parallel mesh costs; nothing of other methods."""
    rows = [
        (
            entry.axis.removeprefix("tp_"), str(entry.degree), str(entry.ranks_per_node),
            format_bytes(entry.sent_bytes_per_rank), format_time(entry.busy_s), format_time(entry.exposed_s),
        )
        for entry in summary.tensor_axes or ()
    ]  # fmt: skip
    columns = ("tensor axis", "ranks", "on a node", "sent per rank", "communication", "exposed")
    return (Table(columns, rows),) if rows else ()


def _utilisation(summary: StepSummary) -> tuple[str, str, str] | None:
    """Return model FLOP/s per device, MFU and HFU in words; None without compute."""
    flop_per_s, mfu, hfu = summary.model_flop_per_s_per_device, summary.mfu, summary.hfu
    if not flop_per_s or mfu is None or hfu is None:
        return None
    return format_rate(flop_per_s, "FLOP/s"), format_percent(mfu), format_percent(hfu)


def _details(summary: StepSummary) -> list[Fact]:
    return [Fact(name, words) for name, words in detail_rows(summary)]


def _time_line(summary: StepSummary) -> Line:
    """Return the step time, and its 90 % interval if there is one."""
    time = Piece(format_time(summary.iteration_time_s), "strong")
    interval = spread_words(summary.iteration_time_interval_s)
    return (time, f" ({interval})") if interval else (time,)


def _memory_line(summary: StepSummary) -> Line:
    """Return the fullest role's peak against its device's capacity."""
    words = memory_words(summary)
    if not words:
        return (Piece("not modelled: a textbook workload has only stated times", "soft"),)
    return (
        f"{words}: ",
        Piece("fits", "good") if summary.fits_memory else Piece("DOES NOT FIT", "bad"),
        room_words(summary),
    )


def _memory_cards(summary: StepSummary) -> list[Card]:
    """Return the fullest role's peak against capacity, empty for textbook jobs, which hold no memory."""
    fullest, capacity = fullest_row(summary)
    peak = fullest.peak_memory_bytes
    if not peak or not capacity:
        return []
    fits = summary.fits_memory
    verdict = "" if fits is None else ": fits" if fits else ": does not fit"
    verdict += room_words(summary)
    where = row_name(summary.roles, fullest, "every rank")
    detail = f"of {format_bytes(capacity)} on {where}{verdict}"
    return [Card("Peak memory", format_bytes(peak), detail, "" if fits is None else "good" if fits else "bad")]
