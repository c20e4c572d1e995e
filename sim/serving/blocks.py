"""Paged memory of keys and values: blocks of private tokens, and shared pieces of prompts.

Kwon et al. 2023, PagedAttention: a request's cache grows block by block, and equal prefixes are kept once. A private
block belongs to one request and is only counted. A shared piece has a name (the content of the prompt up to its end),
a number of users, and stays after its last user until somebody needs the room: the least recently used goes first.
"""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """The blocks of one replica. ``free`` + ``private`` + the blocks of shared pieces are always ``total``.

    ``most_of_one``: blocks that one request can have, those of a group of ranks.
    """

    def __init__(self, total: int, block_tokens: int, piece_tokens: int = 512, num_groups: int = 1) -> None:
        self.total = total
        self.most_of_one = total // num_groups
        self.block_tokens = block_tokens
        self.blocks_per_piece = piece_tokens // block_tokens
        self.free = total
        self.private = 0
        self.peak = 0
        self.users: dict[int, int] = {}
        self.unused: OrderedDict[int, None] = OrderedDict()

    @property
    def obtainable(self) -> int:
        """Return the blocks that a request could have: free ones, and those of pieces that nobody uses."""
        return self.free + len(self.unused) * self.blocks_per_piece

    def note_peak(self) -> None:
        """Note that the blocks that are not obtainable now were in use; ``peak`` is the most of them."""
        self.peak = max(self.peak, self.total - self.obtainable)

    def take(self, count: int) -> None:
        """Give a request so many private blocks, which must be obtainable."""
        while self.free < count:
            if not self.unused:
                message = f"{count} blocks were taken where only {self.free} are free"
                raise RuntimeError(message)
            self.unused.popitem(last=False)
            self.free += self.blocks_per_piece
        self.free -= count
        self.private += count

    def give_back(self, count: int) -> None:
        """Free private blocks of a request."""
        if count > self.private:
            message = f"{count} blocks were given back where only {self.private} are private"
            raise RuntimeError(message)
        self.free += count
        self.private -= count

    def known(self, pieces: Sequence[int]) -> int:
        """Return how many first pieces of a prompt are held already."""
        return next((place for place, name in enumerate(pieces) if not self._holds(name)), len(pieces))

    def unused_of(self, pieces: Sequence[int]) -> int:
        """Return how many of these held pieces nobody uses: using them takes as many pieces from the obtainable."""
        return sum(name in self.unused for name in pieces)

    def use(self, pieces: Sequence[int]) -> None:
        """Add a user to pieces that are held."""
        for name in pieces:
            self.unused.pop(name, None)
            self.users[name] = self.users.get(name, 0) + 1

    def share(self, pieces: Sequence[int]) -> None:
        """Turn a request's private blocks into pieces that it uses; blocks of pieces held already are freed."""
        for name in pieces:
            if self._holds(name):
                self.give_back(self.blocks_per_piece)
            else:
                self.private -= self.blocks_per_piece
            self.use((name,))

    def leave(self, pieces: Sequence[int]) -> None:
        """Remove a user from pieces. The last piece of a prompt becomes the first to go."""
        for name in reversed(pieces):
            self.users[name] -= 1
            if not self.users[name]:
                del self.users[name]
                self.unused[name] = None

    def forget(self) -> None:
        """Free all pieces that nobody uses."""
        self.free += len(self.unused) * self.blocks_per_piece
        self.unused.clear()

    def _holds(self, name: int) -> bool:
        return name in self.users or name in self.unused
