"""Block pool: a null block, reference counts, blocks found again by hash, least recently used eviction.

Nothing here knows a formula for how many blocks a request needs: groups (groups.py) take and release, the pool counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

Key = tuple[bytes, int]
"""(hash of the whole prefix up to the block's end, group)"""


class Block:
    """One block; `key` is set while a prefix can be found in it."""

    __slots__ = ("index", "key", "refs")

    def __init__(self, index: int) -> None:
        self.index = index
        self.refs = 0
        self.key: Key | None = None


class PoolExhausted(RuntimeError):
    """More blocks were taken than are free: the scheduler failed to ask first."""


class BlockPool:
    """`size` blocks of which one is the null block, which stands in tables where nothing is kept.

    A block that nobody refers to is free; if it has a key it can still be found, until it is taken again (oldest first).
    """

    def __init__(self, size: int, null: bool = True) -> None:
        self.size = size
        self.usable = size - 1 if null else size
        self.null = Block(0)
        self._made = 0  # blocks are made when first needed: a pool of a million starts in no time
        self._idle: OrderedDict[Block, None] = OrderedDict()
        self._found: dict[Key, Block] = {}
        self.free = self.usable
        self.peak = 0
        self.high = 0
        """Most blocks in use at once since the scheduler last set this to 0: a step's true peak."""
        self.evictions = 0

    @property
    def used(self) -> int:
        return self.usable - self.free

    @property
    def usage(self) -> float:
        """Share in use, 0..1: 1 - free/(size - 1)."""
        return 1.0 - self.free / self.usable if self.usable else 0.0

    @property
    def findable(self) -> int:
        """Free blocks that still hold a prefix."""
        return sum(block.key is not None for block in self._idle)

    def take(self, count: int) -> list[Block]:
        """`count` blocks: never used ones first, then the least recently released. Raises PoolExhausted."""
        if count > self.free:
            raise PoolExhausted(f"{count} blocks wanted, {self.free} free")
        taken: list[Block] = []
        for _ in range(count):
            if self._made < self.usable:
                self._made += 1
                block = Block(self._made)
            else:
                block, _ = self._idle.popitem(last=False)
                if block.key is not None:
                    self._forget(block)
                    self.evictions += 1
            block.refs = 1
            taken.append(block)
        self.free -= count
        self._mark()
        return taken

    def share(self, blocks: Iterable[Block]) -> None:
        """One more reference to blocks that were found."""
        for block in blocks:
            if block is self.null:
                continue
            if block.refs == 0:
                del self._idle[block]
                self.free -= 1
            block.refs += 1
        self._mark()

    def release(self, blocks: Iterable[Block]) -> None:
        """One reference less; a block without any is free, and last in line to be taken."""
        for block in blocks:
            if block is self.null:
                continue
            block.refs -= 1
            if block.refs == 0:
                self._idle[block] = None
                self.free += 1

    def register(self, block: Block, key: Key) -> None:
        """Let `key` be found in `block`; the first block with a key keeps it."""
        if block.key is None and block is not self.null and key not in self._found:
            block.key = key
            self._found[key] = block

    def find(self, key: Key) -> Block | None:
        return self._found.get(key)

    def forget_all(self) -> bool:
        """Forget every prefix; False while blocks are in use."""
        if self.used:
            return False
        for block in self._found.values():
            block.key = None
        self._found.clear()
        return True

    def _mark(self) -> None:
        used = self.usable - self.free
        if used > self.high:
            self.high = used
            if used > self.peak:
                self.peak = used

    def _forget(self, block: Block) -> None:
        if block.key is not None:
            self._found.pop(block.key, None)
            block.key = None
