"""Peer clients on the calibration server, each as its users would write it. Run by client.py in an environment of its own.

`python peers.py CLIENT URL CONCURRENCY LAPS TOKENS` prints one JSON object: CPU while loading, wall time, and the error of each
event's stamp (time.time_ns when the client has the event) against the stamp that the server wrote into it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import select
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

STAMP = re.compile(rb'"t":(\d+)')


def body(tokens: int) -> bytes:
    return json.dumps({"model": "model", "prompt": [1, 2, 3], "max_tokens": tokens, "stream": True}).encode()


def request(tokens: int) -> bytes:
    content = body(tokens)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def timed(errors: list[int], stored: list[tuple[int, bytes]]) -> None:
    """Error of the last event of every read."""
    for at, data in stored:
        stamps = STAMP.findall(data)
        if stamps:
            errors.append(at - int(stamps[-1]))


# --- a recvmsg loop that only stores -------------------------------------------------------------------------------


def recvmsg_loop(url: str, concurrency: int, laps: int, tokens: int) -> dict[str, Any]:
    """The floor: epoll, recvmsg with SO_TIMESTAMPNS, append. It ends when all has been silent; CPU time does not count that."""
    address = (urlsplit(url).hostname, urlsplit(url).port)
    epoll, reads, cpu, wall = select.epoll(), [], 0, 0.0
    socks: dict[int, Any] = {}
    for _ in range(concurrency):
        sock = socket.create_connection(address)
        sock.setsockopt(socket.SOL_SOCKET, 35, 1)
        sock.setblocking(False)
        socks[sock.fileno()] = sock
        epoll.register(sock.fileno(), select.EPOLLIN)
    data = request(tokens)
    recvmsg = {fd: sock.recvmsg for fd, sock in socks.items()}
    poll, now = epoll.poll, time.time_ns
    gc.collect()
    gc.freeze()
    gc.disable()  # as evenhand measures: a floor that pauses to collect would be no floor
    for _ in range(laps):
        begin, started = time.thread_time_ns(), time.monotonic()
        for sock in socks.values():
            sock.send(data)
        while events := poll(0.3):
            for fd, _ in events:
                piece, ancillary, _, _ = recvmsg[fd](16384, 64)
                reads.append((now(), ancillary, piece))
        cpu += time.thread_time_ns() - begin
        wall += time.monotonic() - started - 0.3
    errors: list[int] = []
    timed(errors, [(at, piece) for at, _, piece in reads])
    events = sum(len(STAMP.findall(piece)) for _, _, piece in reads)
    return {"cpu_ns": cpu, "wall_s": wall, "events": events, "errors": errors}


# --- asyncio.Protocol ----------------------------------------------------------------------------------------------


class Bare(asyncio.Protocol):
    """Stamps and stores what arrives; decodes nothing."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, bytes]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.stored.append((time.time_ns(), data))
        if data.endswith(b"0\r\n\r\n"):
            self.done.set_result(None)


class Raw(Bare):
    """Splits events and parses each with orjson as it comes."""

    def __init__(self) -> None:
        super().__init__()
        import orjson

        self.loads = orjson.loads
        self.buffer = b""
        self.texts: list[str] = []

    def data_received(self, data: bytes) -> None:
        now = time.time_ns()
        self.stored.append((now, data))
        *events, self.buffer = (self.buffer + data).split(b"\n\n")
        for event in events:
            at = event.find(b"data: ")
            if at >= 0 and event[at + 6 : at + 12] != b"[DONE]":
                choices = self.loads(event[at + 6 :])["choices"]
                if choices:
                    self.texts.append(choices[0]["text"])
        if data.endswith(b"0\r\n\r\n"):
            self.done.set_result(None)


async def protocol(kind: type[Bare], url: str, concurrency: int, laps: int, tokens: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    made = [(await loop.create_connection(kind, parts.hostname, parts.port))[1] for _ in range(concurrency)]

    async def slot(one: Bare) -> None:
        for _ in range(laps):
            one.transport.write(request(tokens))
            await one.done
            one.done = loop.create_future()

    result = await load([lambda one=one: slot(one) for one in made])
    errors: list[int] = []
    for one in made:
        timed(errors, one.stored)
    return {**result, "events": sum(len(STAMP.findall(d)) for one in made for _, d in one.stored), "errors": errors}


async def load(slots: list[Callable[[], Awaitable[None]]]) -> dict[str, Any]:
    gc.collect()
    gc.freeze()
    begin, started = time.process_time_ns(), time.monotonic()
    await asyncio.gather(*(slot() for slot in slots))
    return {"cpu_ns": time.process_time_ns() - begin, "wall_s": time.monotonic() - started}


# --- libraries -----------------------------------------------------------------------------------------------------


async def library(slots: Callable[[list[tuple[int, int]]], Any], concurrency: int) -> dict[str, Any]:
    seen: list[tuple[int, int]] = []
    async with slots(seen) as one:
        result = await load([one] * concurrency)
    return {**result, "events": len(seen), "errors": [at - sent for at, sent in seen]}


def with_aiohttp(url: str, concurrency: int, laps: int, tokens: int) -> Any:
    import contextlib

    import aiohttp
    import orjson

    @contextlib.asynccontextmanager
    async def slots(seen: list[tuple[int, int]]) -> Any:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

            async def slot() -> None:
                for _ in range(laps):
                    async with session.post(url + "/v1/completions", data=body(tokens)) as response:
                        async for line in response.content:
                            if line.startswith(b"data: {"):
                                now = time.time_ns()
                                row = orjson.loads(line[6:])
                                if "t" in row:
                                    seen.append((now, row["t"]))

            yield slot

    return library(slots, concurrency)


def with_httpx(url: str, concurrency: int, laps: int, tokens: int, *, sse: bool) -> Any:
    import contextlib

    import httpx
    import orjson

    @contextlib.asynccontextmanager
    async def slots(seen: list[tuple[int, int]]) -> Any:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:

            async def slot() -> None:
                for _ in range(laps):
                    if sse:
                        from httpx_sse import aconnect_sse

                        async with aconnect_sse(client, "POST", url + "/v1/completions", content=body(tokens)) as source:
                            async for event in source.aiter_sse():
                                now = time.time_ns()
                                if event.data != "[DONE]" and "t" in (row := orjson.loads(event.data)):
                                    seen.append((now, row["t"]))
                    else:
                        async with client.stream("POST", url + "/v1/completions", content=body(tokens)) as response:
                            async for line in response.aiter_lines():
                                if line.startswith("data: {"):
                                    now = time.time_ns()
                                    row = orjson.loads(line[6:])
                                    if "t" in row:
                                        seen.append((now, row["t"]))

            yield slot

    return library(slots, concurrency)


def main() -> None:
    client, url, concurrency, laps, tokens = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    if client == "recvmsg loop":
        result = recvmsg_loop(url, concurrency, laps, tokens)
    else:
        import uvloop

        run = {
            "asyncio.Protocol": lambda: protocol(Bare, url, concurrency, laps, tokens),
            "raw + orjson": lambda: protocol(Raw, url, concurrency, laps, tokens),
            "aiohttp": lambda: with_aiohttp(url, concurrency, laps, tokens),
            "httpx": lambda: with_httpx(url, concurrency, laps, tokens, sse=False),
            "httpx-sse": lambda: with_httpx(url, concurrency, laps, tokens, sse=True),
        }[client]
        result = uvloop.run(run())
    errors = sorted(result.pop("errors"))
    result["p50_us"] = errors[len(errors) // 2] / 1e3
    result["p99_us"] = errors[len(errors) * 99 // 100] / 1e3
    print(json.dumps(result))


if __name__ == "__main__":
    main()
