"""Text to train a small model on: the help pages that ship with Python, cut into pieces of words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pydoc_data.topics import topics
from re import findall
from typing import Final

_NUM_BYTES: Final = 256
_HELD_OUT: Final = 10


def help_pages() -> tuple[str, str]:
    """Return Python's help pages: nine of ten to train on, and every tenth for judging."""
    pages = [text for _, text in sorted(topics.items())]
    held_out = [page for place, page in enumerate(pages) if place % _HELD_OUT == 0]
    return "\n".join(page for page in pages if page not in held_out), "\n".join(held_out)


@dataclass(frozen=True, slots=True)
class PieceVocabulary:
    """Byte-pair encoding (Sennrich et al. 2016): bytes, and pieces that were joined in the order of ``joined``."""

    joined: tuple[tuple[int, int], ...]
    _ranks: dict[tuple[int, int], int] = field(init=False, default_factory=dict)
    _words: dict[str, tuple[int, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._ranks.update({pair: rank for rank, pair in enumerate(self.joined)})

    def __len__(self) -> int:
        return _NUM_BYTES + len(self.joined)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        found = list[int]()
        for word in words_of(text):
            if word not in self._words:
                self._words[word] = self._pieces(word)
            found += self._words[word]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        spelt = [bytes([byte]) for byte in range(_NUM_BYTES)]
        for left, right in self.joined:
            spelt.append(spelt[left] + spelt[right])
        return b"".join(spelt[token] for token in tokens).decode(errors="replace")

    def _pieces(self, word: str) -> tuple[int, ...]:
        pieces = list(word.encode())
        while len(pieces) > 1:
            best = min(pairwise(pieces), key=lambda pair: self._ranks.get(pair, len(self)))
            if best not in self._ranks:
                break
            pieces = joined_pieces(pieces, best, _NUM_BYTES + self._ranks[best])
        return tuple(pieces)


def learned_vocabulary(text: str, size: int) -> PieceVocabulary:
    """Return the vocabulary of this size that joins the most frequent pair of pieces, again and again."""
    words = [(list(word.encode()), count) for word, count in Counter(words_of(text)).items()]
    found = list[tuple[int, int]]()
    for token in range(_NUM_BYTES, size):
        counts = Counter[tuple[int, int]]()
        for pieces, count in words:
            for pair in pairwise(pieces):
                counts[pair] += count
        best = max(counts, key=lambda pair: (counts[pair], pair))
        found.append(best)
        words = [(joined_pieces(pieces, best, token), count) for pieces, count in words]
    return PieceVocabulary(tuple(found))


def words_of(text: str) -> list[str]:
    """Return the words of a text, each with the blank before it; signs and further blanks are words of their own."""
    return findall(r" ?\w+| ?[^\w\s]+|\s+", text)


def joined_pieces(pieces: Sequence[int], pair: tuple[int, int], token: int) -> list[int]:
    """Return pieces with each occurrence of a pair replaced by a token."""
    found, place = list[int](), 0
    while place < len(pieces):
        if tuple(pieces[place : place + 2]) == pair:
            found.append(token)
            place += 2
        else:
            found.append(pieces[place])
            place += 1
    return found
