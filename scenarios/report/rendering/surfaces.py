"""The choice of blocks for a surface."""

from collections.abc import Iterator, Sequence

from scenarios.report.blocks import Block, Columns, Fold, Group, Only, Section, Surface


def shown_on(surface: Surface, blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks of a surface, with blocks inside ``Only`` unpacked."""
    for block in blocks:
        if not isinstance(block, Only):
            yield block
        elif block.surface == surface:
            yield from shown_on(surface, block.blocks)


def every_block(surface: Surface, blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks of a surface and the blocks inside them, in reading order."""
    for block in shown_on(surface, blocks):
        yield block
        match block:
            case Section() | Group() | Fold():
                yield from every_block(surface, block.blocks)
            case Columns():
                yield from every_block(surface, block.groups)
