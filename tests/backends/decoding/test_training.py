"""Training of a small model and its heads, the text they learn from, and the counting of hits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.torch.decoding.decoder import Decoder, DecoderSpec
from backends.torch.decoding.drafters import ModelDrafter
from backends.torch.decoding.heads.clover import Clover2Heads, CloverHeads
from backends.torch.decoding.heads.draft_heads import DraftHeads
from backends.torch.decoding.heads.eagle import EagleHeads
from backends.torch.decoding.heads.hydra import HydraHeads
from backends.torch.decoding.heads.medusa import MedusaHeads
from backends.torch.decoding.hits import answers, hit_ranks, hit_rates, recorded_chain, recorded_heads
from backends.torch.decoding.text import learned_vocabulary
from backends.torch.decoding.training import heads_and_labels, train_decoder, train_heads, windows

RIDDLE = "the cat sat on the mat. the dog sat on the log. the cat saw the dog, and the dog saw the cat. " * 8
VOCABULARY = learned_vocabulary(RIDDLE, 270)
SPEC = DecoderSpec(vocab_size=270, hidden_size=32, num_layers=2, num_heads=2)


@given(st.text(max_size=40))
def test_pieces_give_the_text_back(text: str) -> None:
    """Encoding and decoding change nothing, for any text; frequent words are single pieces."""
    assert (
        VOCABULARY.decode(VOCABULARY.encode(text.encode(errors="ignore").decode()))
        == text.encode(errors="ignore").decode()
    )
    assert len(VOCABULARY.encode(" the")) == 1


@pytest.fixture(scope="module")
def model() -> Decoder:
    """Return a model that knows the text roughly: its loss fell from that of a guess among all tokens."""
    torch.manual_seed(0)
    model = Decoder(SPEC)
    loss = train_decoder(model, windows(VOCABULARY.encode(RIDDLE), 33, 8, 0), 80, learning_rate=5e-3)
    assert loss < 2.0  # log 270 is 5.6
    return model


def test_trained_heads_hit_and_clovers_more_often(model: Decoder) -> None:
    """Both kinds of heads learn; Clover's know the tokens before and hit more often; their steps are recorded."""
    torch.manual_seed(1)
    medusa, clover = MedusaHeads(model, 3), CloverHeads(model, 3)
    pieces = windows(VOCABULARY.encode(RIDDLE), 33, 8, 1)
    train_heads(model, (medusa, clover), pieces, 120, learning_rate=5e-3)
    text = answers(model, next(pieces)[:, :12], 24)
    judged = next(pieces)
    first = [hit_rates(hit_ranks(model, heads, judged, 0), 3)[0][0] for heads in (medusa, clover)]
    assert first[1] > first[0] > 0.2
    prompts = text[:1, :12]
    small, large = recorded_heads(model, clover, text, text, prompts)["trees"]
    for shape in ("static", "by_confidence", "reranked"):
        found = small[shape]
        mean = sum(length * share for length, share in enumerate(found["lengths"], start=1))
        assert mean == pytest.approx(found["tokens_per_step"], abs=2e-3)
        assert found["tokens_per_step"] > 1.2
        assert found["positions"] <= 5 < large[shape]["positions"] <= 17
        assert found["frontiers"][0] == 1.0
    chain = recorded_chain(model, 4, prompts, lambda: ModelDrafter(model, 4))
    assert (chain["acceptance"], chain["tokens_per_step"]) == (1.0, 5.0)


@pytest.mark.parametrize("kind", [HydraHeads, Clover2Heads, EagleHeads])
def test_other_heads_learn(model: Decoder, kind: type[DraftHeads]) -> None:
    """Some training makes more of the first two guesses right: they learn from the text, or from the target."""
    torch.manual_seed(1)
    heads, pieces = kind(model, 2), windows(VOCABULARY.encode(RIDDLE), 33, 8, 1)
    judged = next(pieces)
    before = (hit_ranks(model, heads, judged, 0) == 0).float().mean()
    train_heads(model, [heads], pieces, 60, learning_rate=5e-3)
    after = (hit_ranks(model, heads, judged, 0) == 0).float().mean()
    assert after > before + 0.1


def test_clovers_first_heads_are_medusas_behind_its_block(model: Decoder) -> None:
    """With values of 0 the cell passes its state on: all heads guess from the augmented state, whatever the tokens."""
    clover = CloverHeads(model, 2)
    text = torch.tensor([VOCABULARY.encode(RIDDLE)[:20]])
    hidden = model(text)
    logits, labels = heads_and_labels(clover, hidden, text)
    assert torch.allclose(logits[0], model.head(clover.first_states(hidden[:, :17], labels[0], None)), atol=1e-5)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(labels[0], text[:, 2:19])
    assert torch.equal(labels[1], text[:, 3:20])
    logits[0].sum().backward()
    assert float(clover.augmenting.qkv.weight.grad.abs().sum()) > 0.0


def test_hits_are_counted_where_the_tokens_before_were_guessed() -> None:
    """Four places: at the second depth those count whose first token was among the first two guesses."""
    ranks = torch.tensor([[0, 0, 1, 5], [0, 1, 0, 0]])
    assert hit_rates(ranks, 2) == [[0.5, 0.25], [pytest.approx(2 / 3), pytest.approx(1 / 3)]]
