"""Generation by drafts: one pass of the target verifies a tree, and the cache keeps the rows of what is accepted."""

import torch
from msgspec import Struct
from torch import Tensor

from backends.torch.decoding.decoder import Cache, Decoder
from backends.torch.decoding.drafters import Drafter
from backends.torch.decoding.step import Step, numbers
from sim.serving.decoding.draft_tree import Acceptance, DraftTree, GreedyAcceptance


class Generated(Struct, frozen=True):
    """The tokens of an answer. ``per_step``: tokens that each pass settled; the last may settle more than were wanted.

    ``positions``: nodes that each pass verified, the root among them.
    """

    tokens: tuple[int, ...]
    per_step: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def tokens_per_step(self) -> float:
        """Return the mean tokens of a pass."""
        return sum(self.per_step) / len(self.per_step)


def tree_states(model: Decoder, tree: DraftTree, cache: Cache) -> Tensor:
    """Return the last hidden states [nodes, width] of a tree's nodes below the cached tokens, in one pass.

    A node sees the cached tokens, itself and the nodes above it. The cache gets a row for each node.
    """
    tokens, depths = torch.tensor([tree.tokens]), torch.tensor(tree.depths())
    found: Tensor = model(tokens, cache, depths, torch.from_numpy(tree.ancestors()))[0]
    return found


@torch.no_grad()
def generate(
    model: Decoder,
    prompt: tuple[int, ...],
    num_tokens: int,
    drafter: Drafter,
    acceptance: Acceptance | None = None,
) -> Generated:
    """Return an answer of so many tokens; greedy unless another rule of acceptance is given."""
    rule, cache = acceptance or GreedyAcceptance(), Cache()
    hidden = model(torch.tensor([prompt]), cache)[0]
    logits = numbers(model.head(hidden[-1:]))
    root = rule.accept(DraftTree((prompt[-1],), (-1,)), logits).next_token
    drafter.settle(Step(prompt, hidden, (root,), (0,)))
    found, per_step, positions = list[int](), list[int](), list[int]()
    while len(found) < num_tokens:
        tree, before = drafter.draft(root), len(cache)
        hidden = tree_states(model, tree, cache)
        logits = numbers(model.head(hidden))
        accepted = rule.accept(tree, logits)
        cache.keep(before, accepted.path)
        tokens = tuple(tree.tokens[node] for node in accepted.path)
        choices = tuple(logits.argmax(axis=1).tolist())
        drafter.settle(Step(tokens, hidden[list(accepted.path)], choices, accepted.path))
        found += tokens
        per_step.append(len(tokens))
        positions.append(len(tree))
        root = accepted.next_token
    return Generated(tuple(found[:num_tokens]), tuple(per_step), tuple(positions))
