"""Decoding by drafts, run for real: each method gives the tokens that one token at a time gives."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from backends.torch.decoding.decoder import Cache, Decoder, DecoderSpec
from backends.torch.decoding.drafters import (
    Drafter,
    LookupDrafter,
    ModelDrafter,
    NoDraft,
    ParallelDrafter,
    TreeDrafter,
    tree_drafter,
)
from backends.torch.decoding.generation import Generated, generate, tree_states
from backends.torch.decoding.heads.clover import Clover2Heads, CloverHeads
from backends.torch.decoding.heads.draft_heads import DraftHeads
from backends.torch.decoding.heads.eagle import EagleHeads
from backends.torch.decoding.heads.hydra import HydraHeads
from backends.torch.decoding.heads.medusa import MedusaHeads
from backends.torch.decoding.step import Step
from sim.serving.decoding.draft_tree import DraftTree, RejectionAcceptance, TypicalAcceptance, probabilities
from sim.serving.decoding.growth import ByConfidence, Drawn, FixedRanks, Growth, Node, Reranked

VOCABULARY = 23
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
TREE = frozenset({(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)})
RANKED, CONFIDENT = FixedRanks(TREE), ByConfidence(top_p=0.9, least=0.1)
HEADS: dict[str, type[DraftHeads]] = {
    "medusa": MedusaHeads,
    "hydra": HydraHeads,
    "clover": CloverHeads,
    "clover2": Clover2Heads,
    "eagle": EagleHeads,
}
SHAPES: dict[str, tuple[Growth, int]] = {
    "static": (RANKED, len(TREE)),
    "confident": (CONFIDENT, 6),
    "reranked": (Reranked(width=4), 8),
}


def small(seed: int, spread: float = 4.0) -> Decoder:
    """Return a decoder of float64 with random weights, large enough that its answers differ from token to token."""
    torch.manual_seed(seed)
    model = Decoder(DecoderSpec(vocab_size=VOCABULARY, hidden_size=16, num_layers=2, num_heads=2)).double()
    for parameter in model.parameters():
        parameter.data.mul_(spread if parameter.dim() > 1 else 1.0)
    return model.eval()


@pytest.fixture(scope="module")
def target() -> Decoder:
    """Return the model whose answers are wanted."""
    return small(0)


def heads(name: str, target: Decoder) -> DraftHeads:
    """Return untrained heads with noise in all their weights: some guesses are right by chance."""
    torch.manual_seed(5)
    found = HEADS[name](target, 3).double()
    for parameter in found.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return found


def tree_of(name: str, shape: str, target: Decoder) -> TreeDrafter:
    """Return a drafter of trees by these heads."""
    return tree_drafter(heads(name, target), *SHAPES[shape])


class Remembering(NoDraft):
    """A draft of the right answer, with a wrong branch before each right token and a wrong token in the chain."""

    def __init__(self, answer: tuple[int, ...], wrong_at: int) -> None:
        self.answer, self.wrong_at, self.place = answer, wrong_at, -len(PROMPT)

    def settle(self, step: object) -> None:
        """Go on in the answer by the tokens of a step."""
        self.place += len(step.tokens)

    def draft(self, root: int) -> DraftTree:
        """Return a tree whose right path does not lie in a row: compaction has to move rows."""
        tokens, parents, above = [root], [-1], 0
        for depth, token in enumerate(self.answer[self.place + 1 : self.place + 5]):
            tokens += [(token + 1) % VOCABULARY, (token + (depth == self.wrong_at)) % VOCABULARY]
            parents += [above, above]
            above = len(tokens) - 1
        return DraftTree(tuple(tokens), tuple(parents))


DRAFTERS: dict[str, Callable[[Decoder, Generated], Drafter]] = {
    "chain of a draft model": lambda target, plain: ModelDrafter(small(1), 4),
    "chain of the model itself": lambda target, plain: ModelDrafter(target, 4),
    "prompt lookup": lambda target, plain: LookupDrafter(4),
    "jacobi": lambda target, plain: ParallelDrafter(4),
    "lookahead": lambda target, plain: ParallelDrafter(4, num_candidates=3),
    "right answer between wrong ones": lambda target, plain: Remembering(plain.tokens, 4),
    "right answer with a wrong token": lambda target, plain: Remembering(plain.tokens, 2),
}


@pytest.fixture(scope="module")
def plain(target: Decoder) -> Generated:
    """Return the answer of one token at a time."""
    return generate(target, PROMPT, 40, NoDraft())


def test_answer_of_one_token_at_a_time_is_that_of_whole_passes(target: Decoder, plain: Generated) -> None:
    """The cache changes nothing: one pass over the prompt and the answer chooses the same tokens, not all alike."""
    text = torch.tensor([[*PROMPT, *plain.tokens]])
    choices = target.head(target(text))[0].argmax(dim=1)[len(PROMPT) - 1 : -1]
    assert tuple(choices.tolist()) == plain.tokens
    assert len(set(plain.tokens)) > 4


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafts_change_no_token(name: str, target: Decoder, plain: Generated) -> None:
    """Greedy output equals that of one token at a time, token by token, whatever was drafted."""
    found = generate(target, PROMPT, 40, DRAFTERS[name](target, plain))
    assert found.tokens == plain.tokens
    expected = {
        "chain of the model itself": 5,
        "right answer between wrong ones": 5,
        "right answer with a wrong token": 3,
    }
    if name in expected:
        assert set(found.per_step[:6]) == {expected[name]}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HEADS)
def test_trees_of_heads_change_no_token(name: str, shape: str, target: Decoder, plain: Generated) -> None:
    """Greedy output is that of one token at a time for static and dynamic trees, and some guesses were right."""
    drafter = tree_of(name, shape, target)
    found = generate(target, PROMPT, 40, drafter)
    assert found.tokens == plain.tokens
    assert max(found.per_step) > 1
    assert max(found.positions) <= 1 + SHAPES[shape][1]
    assert len(drafter.frontiers) == len(found.per_step)


@pytest.mark.parametrize("name", HEADS)
def test_guesses_of_an_answer_are_those_of_training(name: str, target: Decoder, plain: Generated) -> None:
    """Step by step, with a memory, heads guess what they guess for the whole text in one pass."""
    of, text = heads(name, target), torch.tensor([[*PROMPT, *plain.tokens]])
    hidden = target(text)
    places = text.shape[1] - 3
    following = torch.stack([text[:, 1 + depth : 1 + depth + places] for depth in range(3)])
    whole = [logits[0].softmax(dim=-1) for logits in of(hidden[:, :places], following)]
    guesser, settled = of.guesser(), 0
    for place in (4, 5, 9, 20):
        kept = slice(settled, place + 1)
        guesser.settle(Step(tuple(text[0, kept].tolist()), hidden[0, kept], (), ()))
        settled = place + 1
        node, path = Node(0, (), int(text[0, place + 1]), 1.0), ()
        for depth in range(3):
            others = [] if not depth else [Node(9, (*path[:-1], 7), 3, 0.1)]  # a sibling that must not be seen
            found = guesser.after(depth, [node, *others])
            assert found[0] == pytest.approx(whole[depth][place].detach().numpy(), abs=1e-12)
            path = (*path, 0)
            node = Node(depth + 1, path, int(text[0, place + 2 + depth]), 1.0)


@pytest.mark.parametrize(
    ("drafter", "tokens"), [(LookupDrafter(4), 3.0), (ParallelDrafter(4), 1.0), (ParallelDrafter(4, 3), 2.0)]
)
def test_loop_is_found_in_the_text_and_by_pieces(drafter: Drafter, tokens: float) -> None:
    """Where each token follows from the last one alone, Jacobi's guesses gain nothing; the text and pieces do."""
    model = small(0)
    for layer in model.layers:
        layer.output.weight.data.zero_()  # no attention: an answer runs in circles
    plain = generate(model, PROMPT, 60, NoDraft())
    found = generate(model, PROMPT, 60, drafter)
    assert found.tokens == plain.tokens
    assert found.tokens_per_step >= tokens


def test_logits_of_a_tree_are_those_of_its_paths() -> None:
    """A node's logits in one pass over the tree equal those of a pass over prompt and path, in float32."""
    model = small(0).float()
    tree = DraftTree((7, 2, 3, 4, 5, 6, 1), (-1, 0, 0, 1, 1, 2, 5))
    cache = Cache()
    model(torch.tensor([PROMPT]), cache)
    found = model.head(tree_states(model, tree, cache))
    for node, row in enumerate(tree.ancestors()):
        path = [tree.tokens[place] for place in np.flatnonzero(row)]
        alone = model.head(model(torch.tensor([[*PROMPT, *path]])))[0, -1]
        assert (found[node] - alone).abs().max() < 1e-5
    blind = model.head(model(torch.tensor([tree.tokens]), cache_of(model)))[0]
    assert (found - blind).abs().max() > 1e-2, "a chain in place of the tree must differ"


def cache_of(model: Decoder) -> Cache:
    """Return a cache with the prompt."""
    cache = Cache()
    model(torch.tensor([PROMPT]), cache)
    return cache


def test_compacted_cache_is_that_of_a_fresh_prompt(target: Decoder) -> None:
    """Keys and values of accepted nodes, moved together, equal those of computing the text from its beginning."""
    tree, path = DraftTree((7, 2, 3, 4, 5, 6, 1), (-1, 0, 0, 1, 1, 2, 5)), (0, 2, 5, 6)
    cache, fresh = cache_of(target), Cache()
    tree_states(target, tree, cache)
    cache.keep(len(PROMPT), path)
    target(torch.tensor([[*PROMPT, *(tree.tokens[node] for node in path)]]), fresh)
    for layer, keys in fresh.keys.items():
        assert torch.allclose(cache.keys[layer], keys, rtol=0, atol=1e-12)
        assert torch.allclose(cache.values[layer], fresh.values[layer], rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", ["chain of a smaller model", "drawn tree of heads"])
def test_rejection_sampling_keeps_the_distribution(shape: str) -> None:
    """The second token of drawn answers is distributed as the model says, whatever a draft proposes."""
    model, draft = small(2, 2.5), small(3, 2.5)
    of = heads("hydra", model)
    first = probabilities(model.head(model(torch.tensor([PROMPT])))[0, -1].detach().numpy(), 1.0)
    after = torch.tensor([[*PROMPT, token] for token in range(VOCABULARY)])
    second = probabilities(model.head(model(after))[:, -1].detach().numpy(), 1.0)
    generator, counts = np.random.default_rng(1), np.zeros(VOCABULARY)
    for _ in range(150):
        drafter: Drafter = ModelDrafter(draft, 1, temperature=1.0, generator=generator)
        if shape == "drawn tree of heads":
            drafter = tree_drafter(of, Drawn((3,), generator), 3)
        counts[generate(model, PROMPT, 2, drafter, RejectionAcceptance(generator)).tokens[1]] += 1
    likely = first @ second
    order = np.argsort(-likely)
    groups = [order[:1], order[1:3], order[3:7], order[7:]]
    seen, wanted = ([values[group].sum() for group in groups] for values in (counts, likely * counts.sum()))
    assert min(wanted) > 5
    assert chisquare(seen, wanted).pvalue > 1e-3


def test_typical_acceptance_generates(target: Decoder) -> None:
    """Typical acceptance takes longer paths than greedy acceptance where the target is unsure."""
    drafter = tree_of("medusa", "static", target)
    rule = TypicalAcceptance(np.random.default_rng(0), temperature=3.0, epsilon=0.01, delta=0.1)
    assert generate(target, PROMPT, 30, drafter, rule).tokens_per_step > 2.0
