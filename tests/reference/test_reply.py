"""A request that has ended is gone at once: collections are rare in the engine, so nothing may wait for one."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import msgspec
import pytest

from evenhand.engines.reference.dialects import dialect
from evenhand.engines.reference.reply import Reply
from evenhand.engines.reference.server import Server
from evenhand.engines.reference.wire import Request

from .helpers import MODELS, setup_of


class Wire:
    """A connection without a socket that says when its answer has ended."""

    split_bytes: int | None = None

    def __init__(self, ended: Callable[[], None]) -> None:
        self.gone: Callable[[], None] | None = None
        self._ended = ended

    def begin_stream(self) -> None: ...

    def chunk(self, data: bytes) -> None: ...

    def write(self, data: bytes) -> None: ...

    def end_stream(self, data: bytes = b"") -> None:
        self.gone = None
        self._ended()

    def answer(self, status: int, body: bytes, kind: str = "") -> None:
        assert status == 200, body
        self._ended()


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("how", ["stream", "whole", "leaves"])
def test_an_ended_request_waits_for_no_collection(no_collections: None, how: str) -> None:
    options = {"clock": {"base_s": 0.0, "decode_token_s": 0.0}}
    setup = setup_of(
        "--model",
        str(MODELS / "4b-hybrid"),
        "--served-model-name",
        "m",
        "--max-model-len",
        "1024",
        "--kv-cache-memory-bytes",
        "1073741824",
        **options,
    )
    body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 8, "stream": how != "whole", "ignore_eos": True}

    async def serve() -> list[weakref.ref[Reply]]:
        server = Server(setup, dialect("vllm"))
        engine = asyncio.create_task(server.engine.run())
        wires, seen = [], []
        for _ in range(5):
            ended = asyncio.Event()
            wire = Wire(ended.set)
            wires.append(wire)
            server.handle(wire, Request("POST", "/v1/completions", msgspec.json.encode(body)))  # type: ignore[arg-type]
            seen += [weakref.ref(reply) for reply in server._open]
            if how == "leaves":
                await asyncio.sleep(0)
                assert wire.gone is not None
                gone, wire.gone = wire.gone, None
                gone()
            else:
                await asyncio.wait_for(ended.wait(), 10)
        await asyncio.sleep(0.05)
        engine.cancel()
        return seen

    seen = asyncio.run(serve())
    assert len(seen) == 5
    assert [reply() for reply in seen] == [None] * 5
