"""How often drafts are right: hit rates of heads on texts, and tokens per step of greedy generation."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from backends.torch.decoding.decoder import Cache, Decoder
from backends.torch.decoding.drafters import Drafter, tree_drafter
from backends.torch.decoding.generation import generate
from backends.torch.decoding.heads.draft_heads import DraftHeads
from backends.torch.decoding.training import heads_and_labels
from sim.serving.decoding.growth import ByConfidence, FixedRanks, Growth, Reranked
from sim.serving.decoding.tree import Table, greedy_tree, path_probability

Prompts = Sequence[tuple[int, ...]]
ANSWER_TOKENS: Final = 48
NUM_RANKS: Final = 10
TREE_SIZES: Final = (4, 16)


@torch.no_grad()
def answers(model: Decoder, prompts: Tensor, num_tokens: int) -> Tensor:
    """Return prompts [batch, tokens] with their greedy answers [batch, tokens + num_tokens]."""
    cache, text, fresh = Cache(), prompts, prompts
    for _ in range(num_tokens):
        fresh = model.head(model(fresh, cache)[:, -1:]).argmax(dim=-1)
        text = torch.cat((text, fresh), dim=1)
    return text


@torch.no_grad()
def hit_ranks(model: Decoder, heads: DraftHeads, text: Tensor, first: int) -> Tensor:
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
    model: Decoder, heads: DraftHeads, answered: Tensor, text: Tensor, prompts: Tensor
) -> dict[str, Any]:
    """Return the rates of heads on the answers to prompts, and on held-out text, and the steps of trees.

    ``answered`` [batch, tokens]: prompts with their answers; trees are measured on ``prompts`` [batch, tokens].
    """
    ranks, of_text = hit_ranks(model, heads, answered, prompts.shape[1] - 1), hit_ranks(model, heads, text, 0)
    given, plain = hit_rates(ranks, NUM_RANKS), [hit_rates(depth[None], NUM_RANKS)[0] for depth in ranks]
    return {
        "first_guess": [round(float((depth == 0).float().mean()), 4) for depth in ranks],
        "first_guess_of_text": [round(float((depth == 0).float().mean()), 4) for depth in of_text],
        "first_five": [round(float((depth < 5).float().mean()), 4) for depth in ranks],
        "hit_rates": [[round(rate, 4) for rate in row] for row in given],
        "trees": [_recorded_tree(model, heads, num_nodes, given, plain, rows_of(prompts)) for num_nodes in TREE_SIZES],
    }


def _recorded_tree(
    model: Decoder, heads: DraftHeads, num_nodes: int, given: Table, plain: Table, prompts: Prompts
) -> dict[str, Any]:
    """Return the steps of trees of a size, of each shape.

    ``product_of_rates``: tokens per step by the product of hit rates where the tokens before are right;
    ``product_of_plain_rates``: the same for rates that ask nothing of the tokens before.
    """
    paths = greedy_tree(given, num_nodes)
    shapes: dict[str, Growth] = {
        "static": FixedRanks(frozenset(paths)),
        "by_confidence": ByConfidence(),
        "reranked": Reranked(),
    }
    products = [1.0 + sum(path_probability(path, table) for path in paths) for table in (given, plain)]
    found: dict[str, Any] = {
        "nodes": num_nodes,
        "product_of_rates": round(products[0], 3),
        "product_of_plain_rates": round(products[1], 3),
    }
    for name, rule in shapes.items():
        drafters = [tree_drafter(heads, rule, num_nodes) for _ in prompts]
        steps = measured_steps(model, prompts, iter(drafters).__next__)
        frontiers = [sizes for drafter in drafters for sizes in drafter.frontiers]
        found[name] = steps | {"frontiers": _means(frontiers, heads.num_depths)}
    return found


def recorded_chain(model: Decoder, drafted: int, prompts: Tensor, drafter: Callable[[], Drafter]) -> dict[str, Any]:
    """Return the acceptance of chains of so many drafted tokens, and their steps.

    ``acceptance``: of the tokens that were judged, those after the first rejected one left out.
    """
    steps = measured_steps(model, rows_of(prompts), drafter)
    accepted = list(enumerate(steps["lengths"]))
    judged = sum(share * min(length + 1, drafted) for length, share in accepted)
    rate = sum(share * length for length, share in accepted) / judged
    return {"drafted": drafted, "acceptance": round(rate, 4), **steps}


def measured_steps(model: Decoder, prompts: Prompts, drafter: Callable[[], Drafter]) -> dict[str, Any]:
    """Return the mean tokens and positions of a step of greedy generation, and the shares of its lengths 1, 2, ...

    ``drafter`` returns a drafter that knows no text yet, for each prompt.
    """
    found = [generate(model, prompt, ANSWER_TOKENS, drafter()) for prompt in prompts]
    tokens = [count for each in found for count in each.per_step]
    counts = Counter(tokens)
    return {
        "tokens_per_step": round(sum(tokens) / len(tokens), 3),
        "positions": round(sum(sum(each.positions) for each in found) / len(tokens), 2),
        "lengths": [round(counts[length] / len(tokens), 4) for length in range(1, max(counts) + 1)],
    }


def rows_of(prompts: Tensor) -> Prompts:
    """Return prompts [batch, tokens] as tuples of tokens."""
    return [tuple(row) for row in prompts.tolist()]


def _means(frontiers: Sequence[tuple[int, ...]], num_depths: int) -> list[float]:
    """Return the mean number of nodes of each depth; a depth that a draft did not reach has none."""
    padded = [(*sizes, *(0,) * (num_depths - len(sizes))) for sizes in frontiers]
    return [round(sum(column) / len(padded), 2) for column in zip(*padded, strict=True)]
