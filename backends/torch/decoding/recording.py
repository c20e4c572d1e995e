"""Train a small decoder and its draft heads on Python's help pages, and record how often drafts are right.

    python -m backends.torch.decoding.recording traces/drafts/python_help.yaml

takes about six minutes of one processor. Rates are those of greedy answers to held-out text.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from torch import Tensor

from backends.torch.decoding.decoder import Cache, Decoder, DecoderSpec
from backends.torch.decoding.drafters import CloverDrafter, Drafter, LookupDrafter, MedusaDrafter, ModelDrafter
from backends.torch.decoding.generation import Generated, generate
from backends.torch.decoding.heads import CloverHeads, MedusaHeads
from backends.torch.decoding.text import help_pages, learned_vocabulary
from backends.torch.decoding.training import Heads, heads_and_labels, train_decoder, train_heads, windows
from sim.serving.decoding.growth import ByConfidence, FixedRanks, Growth
from sim.serving.decoding.tree import greedy_tree, path_probability

_TARGET: Final = DecoderSpec(vocab_size=512)
_DRAFT: Final = DecoderSpec(vocab_size=512, hidden_size=64, num_layers=1, num_heads=2)
_WINDOW, _BATCH, _DEPTHS, _RANKS = 129, 16, 3, 10
_PROMPTS, _PROMPT_TOKENS, _ANSWER_TOKENS = 64, 48, 48


@torch.no_grad()
def answers(model: Decoder, prompts: Tensor, num_tokens: int) -> Tensor:
    """Return prompts [batch, tokens] with their greedy answers [batch, tokens + num_tokens]."""
    cache, text, fresh = Cache(), prompts, prompts
    for _ in range(num_tokens):
        fresh = model.head(model(fresh, cache)[:, -1:]).argmax(dim=-1)
        text = torch.cat((text, fresh), dim=1)
    return text


@torch.no_grad()
def hit_ranks(model: Decoder, heads: Heads, text: Tensor, first: int) -> Tensor:
    """Return the rank of the true token among each head's guesses [depths, places], from place ``first`` on."""
    logits, labels = heads_and_labels(heads, model(text), text)
    found = []
    for guesses, label in zip(logits, labels, strict=True):
        right = guesses.gather(-1, label[..., None])
        found.append((guesses > right).sum(dim=-1)[:, first:].flatten())
    return torch.stack(found)


def hit_rates(ranks: Tensor, num_ranks: int) -> list[list[float]]:
    """Return for each depth how often each rank is right, where the tokens before were among the first ranks."""
    inside, table = torch.ones(ranks.shape[1], dtype=torch.bool), []
    for depth in ranks:
        judged = depth[inside]
        table.append([float((judged == rank).float().mean()) for rank in range(num_ranks)])
        inside &= depth < num_ranks
    return table


def recorded_heads(
    model: Decoder, heads: Heads, answered: Tensor, text: Tensor, prompts: Sequence[tuple[int, ...]]
) -> dict[str, Any]:
    """Return the rates of heads on answers, and on the held-out text itself, and tokens per step of trees."""
    ranks, of_text = hit_ranks(model, heads, answered, _PROMPT_TOKENS - 1), hit_ranks(model, heads, text, 0)
    table, trees = hit_rates(ranks, _RANKS), []
    for num_nodes in (4, 16):
        paths = greedy_tree(table, num_nodes)
        rules: dict[str, Growth] = {"static": FixedRanks(frozenset(paths)), "by_confidence": ByConfidence()}
        measured = {name: _tokens_per_step(model, heads, rule, num_nodes, prompts) for name, rule in rules.items()}
        product = 1.0 + sum(path_probability(path, table) for path in paths)
        trees.append({"nodes": num_nodes, "product_of_rates": round(product, 3), **measured})
    return {
        "first_guess": [round(float((depth == 0).float().mean()), 4) for depth in ranks],
        "first_guess_of_text": [round(float((depth == 0).float().mean()), 4) for depth in of_text],
        "first_five": [round(float((depth < 5).float().mean()), 4) for depth in ranks],
        "hit_rates": [[round(rate, 4) for rate in row] for row in table],
        "tokens_per_step": trees,
    }


def _tokens_per_step(
    model: Decoder, heads: Heads, rule: Growth, num_nodes: int, prompts: Sequence[tuple[int, ...]]
) -> float:
    found = [generate(model, prompt, _ANSWER_TOKENS, _drafter(heads, rule, num_nodes)) for prompt in prompts]
    return round(_mean(found), 3)


def _drafter(heads: Heads, rule: Growth, num_nodes: int) -> Drafter:
    """Return a drafter that knows no text yet."""
    if isinstance(heads, MedusaHeads):
        return MedusaDrafter(heads, rule, num_nodes)
    return CloverDrafter(heads, rule, num_nodes)


def recorded_chain(model: Decoder, draft: Decoder | None, prompts: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Return the acceptance of a chain of 4 from a draft model, or from the text, and its tokens per step.

    ``acceptance``: of the tokens that were judged, those after the first rejected one left out.
    """
    found, drafted = [], 4
    for prompt in prompts:
        drafter: Drafter = LookupDrafter(drafted) if draft is None else ModelDrafter(draft, drafted)
        found.append(generate(model, prompt, _ANSWER_TOKENS, drafter))
    steps = [tokens - 1 for each in found for tokens in each.per_step]
    judged = sum(min(accepted + 1, drafted) for accepted in steps)
    return {"drafted": drafted, "acceptance": round(sum(steps) / judged, 4), "tokens_per_step": round(_mean(found), 3)}


def _mean(found: Sequence[Generated]) -> float:
    return sum(sum(each.per_step) for each in found) / sum(len(each.per_step) for each in found)


def recording(steps: int, seed: int = 0) -> dict[str, Any]:
    """Train for so many steps, and return the recording."""
    torch.manual_seed(seed)
    text, held_out = help_pages()
    vocabulary = learned_vocabulary(text, _TARGET.vocab_size)
    batches = windows(vocabulary.encode(text), _WINDOW, _BATCH, seed)
    model, draft = Decoder(_TARGET), Decoder(_DRAFT)
    losses = {"target": train_decoder(model, batches, steps), "draft_model": train_decoder(draft, batches, steps)}
    medusa, clover = MedusaHeads(model, _DEPTHS), CloverHeads(model, _DEPTHS)
    for name, heads in (("medusa", medusa), ("clover", clover)):
        losses[name] = train_heads(model, heads, batches, steps)
    pages = windows(vocabulary.encode(held_out), _WINDOW, _PROMPTS, seed + 1)
    prompts, pieces = next(pages)[:, :_PROMPT_TOKENS], next(pages)
    whole = answers(model, prompts, _ANSWER_TOKENS)
    some = [tuple(row) for row in prompts[:16].tolist()]
    return {
        "text": "Python's help pages (pydoc_data.topics), every tenth held out; 512 pieces by byte-pair encoding",
        "model": f"{_TARGET.num_layers} layers of {_TARGET.hidden_size}, {steps} x {_BATCH * (_WINDOW - 1)} tokens",
        "judged": f"{_PROMPTS} greedy answers of {_ANSWER_TOKENS} tokens to {_PROMPT_TOKENS} held-out tokens each",
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "losses": {name: round(loss, 3) for name, loss in losses.items()},
        "medusa": recorded_heads(model, medusa, whole, pieces, some),
        "clover": recorded_heads(model, clover, whole, pieces, some),
        "draft_model": recorded_chain(model, draft, some),
        "prompt_lookup": recorded_chain(model, None, some),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = yaml.safe_dump(recording(600), sort_keys=False, default_flow_style=None, width=130)
    Path(sys.argv[1]).write_text(found, encoding="utf-8")
