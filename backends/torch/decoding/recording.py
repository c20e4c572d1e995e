"""Train a small decoder and its drafts on Python's help pages, and record how often drafts are right.

    python -m backends.torch.decoding.recording drafts.yaml

takes ten minutes of one processor and more. Rates are those of greedy answers to held-out text.
"""

import sys
from pathlib import Path
from typing import Any, Final

import torch
import yaml

from backends.torch.decoding.decoder import Decoder, DecoderSpec
from backends.torch.decoding.drafters import LookupDrafter, ModelDrafter, ParallelDrafter
from backends.torch.decoding.heads.clover import Clover2Heads, CloverHeads
from backends.torch.decoding.heads.draft_heads import DraftHeads
from backends.torch.decoding.heads.eagle import EagleHeads
from backends.torch.decoding.heads.hydra import HydraHeads
from backends.torch.decoding.heads.medusa import MedusaHeads
from backends.torch.decoding.hits import ANSWER_TOKENS, answers, measured_steps, recorded_chain, recorded_heads, rows_of
from backends.torch.decoding.text import help_pages, learned_vocabulary
from backends.torch.decoding.training import train_decoder, train_heads, windows

_TARGET: Final = DecoderSpec(vocab_size=512)
_DRAFT: Final = DecoderSpec(vocab_size=512, hidden_size=64, num_layers=1, num_heads=2)
_WINDOW, _BATCH, _HEADS_BATCH, _DEPTHS, _DRAFTED = 129, 16, 8, 3, 4
_PROMPTS, _PROMPT_TOKENS, _JUDGED_TREES, _CANDIDATES = 64, 48, 24, 3


def recording(steps: int, heads_steps: int, seed: int = 0) -> dict[str, Any]:
    """Train models and heads for so many steps, and return the recording."""
    torch.manual_seed(seed)
    text, held_out = help_pages()
    vocabulary = learned_vocabulary(text, _TARGET.vocab_size)
    batches = windows(vocabulary.encode(text), _WINDOW, _BATCH, seed)
    model, draft = Decoder(_TARGET), Decoder(_DRAFT)
    losses = {"target": train_decoder(model, batches, steps), "draft_model": train_decoder(draft, batches, steps)}
    heads: dict[str, DraftHeads] = {
        "medusa": MedusaHeads(model, _DEPTHS),
        "hydra": HydraHeads(model, _DEPTHS),
        "clover": CloverHeads(model, _DEPTHS),
        "clover2": Clover2Heads(model, _DEPTHS),
        "eagle": EagleHeads(model, _DEPTHS),
    }
    fewer = windows(vocabulary.encode(text), _WINDOW, _HEADS_BATCH, seed + 2)
    losses |= dict(zip(heads, train_heads(model, list(heads.values()), fewer, heads_steps), strict=True))
    pages = windows(vocabulary.encode(held_out), _WINDOW, _PROMPTS, seed + 1)
    prompts, pieces = next(pages)[:, :_PROMPT_TOKENS], next(pages)
    whole, some = answers(model, prompts, ANSWER_TOKENS), prompts[:_JUDGED_TREES]
    return {
        "text": "Python's help pages (pydoc_data.topics), every tenth held out; 512 pieces by byte-pair encoding",
        "model": f"{_TARGET.num_layers} layers of {_TARGET.hidden_size}, {steps} x {_BATCH * (_WINDOW - 1)} tokens",
        "heads": f"{heads_steps} x {_HEADS_BATCH * (_WINDOW - 1)} tokens",
        "judged": f"{_PROMPTS} greedy answers of {ANSWER_TOKENS} tokens to {_PROMPT_TOKENS} held-out tokens each",
        "steps": f"of the first {_JUDGED_TREES} answers",
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "losses": {name: round(loss, 3) for name, loss in losses.items()},
        **{name: recorded_heads(model, of, whole, pieces, some) for name, of in heads.items()},
        "draft_model": recorded_chain(model, _DRAFTED, some, lambda: ModelDrafter(draft, _DRAFTED)),
        "prompt_lookup": recorded_chain(model, _DRAFTED, some, lambda: LookupDrafter(_DRAFTED)),
        "jacobi": recorded_chain(model, _DRAFTED, some, lambda: ParallelDrafter(_DRAFTED)),
        "lookahead": {"drafted": _DRAFTED}
        | measured_steps(model, rows_of(some), lambda: ParallelDrafter(_DRAFTED, _CANDIDATES)),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = yaml.safe_dump(recording(600, 400), sort_keys=False, default_flow_style=None, width=130)
    Path(sys.argv[1]).write_text(found, encoding="utf-8")
