"""The calibration server: `python -m evenhand.drive.calibration` answers completions as simply and fast as Python can.

At every step it wakes all its streams, each with one write of events that carry the real-time clock read just before its send:
the clock the kernel stamps with. The usage event carries when the request arrived (the kernel's stamp) and when the first event
was sent.
Not a model: it knows the truth, so that a client's error can be measured.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from typing import Any

import msgspec

from evenhand.drive.stream import SO_TIMESTAMPNS, kernel_stamps, stamp_ns
from evenhand.engines.base import Chunk, Post, Sampling

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


_CATCH_UP_NS = 100_000_000
"""A server that was held up makes up for this much: a load longer than ideal is the client's doing, not a lost step's."""


class _Stream:
    __slots__ = ("arrived", "buffer", "first", "left", "prompt", "sent", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = self.unsent = b""
        self.left = self.sent = self.prompt = 0
        self.arrived = self.first = 0


_EVENT = (
    b'data: {"object":"text_completion","model":"model","choices":[{"index":0,"text":"x","logprobs":null,'
    b'"finish_reason":%b,"token_ids":[7]}],"t":%d}\n\n'
)


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _template() -> bytes:
    """A chunk with one event and a place for its stamp (19 digits until the year 2286)."""
    before, after = _chunk(_EVENT % (b"null", 10**18)).split(b"%d" % 10**18)
    return before + b"%d" + after


class Server:
    """One process, one epoll, no framework."""

    def __init__(self, port: int, step_s: float, per_write: int, log: str | None, until_eof: bool) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._step_ns = round(step_s * 1e9)
        self._per_write = per_write
        self._plain_write = _template() * per_write
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        if until_eof:
            self._epoll.register(0, select.EPOLLIN | select.EPOLLHUP)
        self._streams: dict[int, _Stream] = {}
        self._running: dict[int, _Stream] = {}
        self._generated = 0
        self._peak = 0
        self._log = open(log, "a") if log else None  # noqa: SIM115, PTH123

    def serve(self) -> None:
        """Until stdin closes, where that was asked for."""
        due = time.monotonic_ns() + self._step_ns
        while True:
            wait = (due - time.monotonic_ns()) / 1e9
            # select waits microseconds exactly, epoll whole milliseconds
            select.select([self._epoll], (), (), max(0.0, wait) if self._running else 1.0)
            for fd, _ in self._epoll.poll(0):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == 0:
                    return
                elif fd in self._streams:
                    self._read(self._streams[fd])
            now = time.monotonic_ns()
            if not self._running:
                due = now + self._step_ns
            elif now >= due:
                self._step()
                due = max(due + self._step_ns, now - _CATCH_UP_NS)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self._streams[sock.fileno()] = _Stream(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _drop(self, stream: _Stream) -> None:
        fd = stream.sock.fileno()
        self._epoll.unregister(fd)
        self._streams.pop(fd, None)
        self._running.pop(fd, None)
        stream.sock.close()

    def _read(self, stream: _Stream) -> None:
        try:
            data, ancillary, _, _ = stream.sock.recvmsg(262144, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._drop(stream)
            return
        stream.buffer += data
        head, found, body = stream.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(body) < length:
            return
        stream.arrived = stamp_ns(ancillary) or time.time_ns()
        stream.buffer = body[length:]
        self._answer(stream, head.split(b" ", 2), body[:length])

    def _answer(self, stream: _Stream, line: list[bytes], body: bytes) -> None:
        path = line[1]
        if line[0] == b"POST":
            try:
                asked: dict[str, Any] = json.loads(body)
            except ValueError:
                self._plain(stream, b'{"error":{"message":"not JSON","code":400}}', b"400 Bad Request")
                return
            prompt = asked.get("prompt", "")
            stream.prompt = len(prompt) if isinstance(prompt, list) else len(prompt.split())
            tokens = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 16)
            if not asked.get("stream", False):
                self._whole(stream, tokens)
                return
            stream.left = tokens
            stream.sent = stream.first = 0
            self._running[stream.sock.fileno()] = stream
            self._peak = max(self._peak, len(self._running))
            self._send(stream, _HEAD)
        elif path.startswith(b"/v1/models"):
            self._plain(stream, b'{"object":"list","data":[{"id":"model","object":"model","max_model_len":1000000}]}')
        elif path.startswith(b"/metrics"):
            text = (
                f'vllm:num_requests_running{{engine="0"}} {len(self._running)}\nvllm:num_requests_waiting{{engine="0"}} 0\n'
                f'vllm:kv_cache_usage_perc{{engine="0"}} {len(self._running) / 1024}\n'
                f'vllm:generation_tokens_total{{engine="0"}} {self._generated}\ncalibration:peak_running {self._peak}\n'
            )
            self._plain(stream, text.encode(), kind=b"text/plain; version=0.0.4")
        else:
            self._plain(stream, b"{}", b"200 OK" if path.startswith(b"/health") else b"404 Not Found")

    def _whole(self, stream: _Stream, tokens: int) -> None:
        usage = {"prompt_tokens": stream.prompt, "completion_tokens": tokens, "total_tokens": stream.prompt + tokens}
        choice = {"index": 0, "text": "x" * tokens, "finish_reason": "length", "token_ids": [7] * tokens}
        self._plain(stream, json.dumps({"object": "text_completion", "choices": [choice], "usage": usage}).encode())

    def _plain(self, stream: _Stream, body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
        self._send(stream, head + body)

    def _send(self, stream: _Stream, data: bytes) -> None:
        """Send, or keep what the client does not take yet for the next step."""
        if stream.unsent:
            stream.unsent += data
            data = stream.unsent
        try:
            stream.unsent = data[stream.sock.send(data) :]
        except BlockingIOError:
            stream.unsent = data
        except OSError:
            self._drop(stream)

    def _step(self) -> None:
        for stream in list(self._running.values()):
            events = min(self._per_write, stream.left)
            stream.left -= events
            stream.sent += events
            self._generated += events
            if stream.left:
                stamp = time.time_ns()
                self._send(stream, self._plain_write % ((stamp,) * self._per_write) if events == self._per_write else b"")
                stream.first = stream.first or stamp
            else:
                self._last(stream, events)

    def _last(self, stream: _Stream, events: int) -> None:
        """The write that ends an answer: events, usage with the truth, [DONE], last chunk."""
        stamp = time.time_ns()
        stream.first = stream.first or stamp
        usage = (
            b'data: {"object":"text_completion","model":"model","choices":[],"usage":{"prompt_tokens":%d,'
            b'"completion_tokens":%d,"total_tokens":%d},"arrived":%d,"first":%d}\n\n'
            % (stream.prompt, stream.sent, stream.prompt + stream.sent, stream.arrived, stream.first)
        )
        payloads = [_EVENT % (b"null", stamp)] * (events - 1) + [_EVENT % (b'"length"', stamp), usage, b"data: [DONE]\n\n"]
        self._running.pop(stream.sock.fileno(), None)
        self._send(stream, b"".join(map(_chunk, payloads)) + b"0\r\n\r\n")
        if self._log is not None:
            self._log.write(f'{{"arrived":{stream.arrived},"first":{stream.first},"last":{stamp}}}\n')
            self._log.flush()


class CalibrationDialect:
    """Completions as the calibration server speaks them."""

    returns_ids = True

    def request(self, prompt: Any, sampling: Sampling, model: str, *, stream: bool = True) -> Post:
        """A POST."""
        body = {"model": model, "prompt": prompt, "max_tokens": sampling.max_tokens, "temperature": 0.0, "stream": stream}
        return Post(path="/v1/completions", body=body)

    def decode(self, payload: bytes) -> Chunk:
        """One event."""
        if payload == b"[DONE]":
            return Chunk(done=True)
        try:
            row = msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            return Chunk(malformed=str(error))
        usage = row.get("usage") or {}
        choice = (row.get("choices") or [{}])[0]
        return Chunk(
            ids=tuple(choice.get("token_ids", ())),
            text=choice.get("text", ""),
            finish_reason=choice.get("finish_reason"),
            prompt_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
        )


def main() -> None:
    """Serve on 127.0.0.1; the first line printed is the port."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.01, help="time between steps; every stream gets one write a step")
    parser.add_argument("--per-write", type=int, default=1, help="events in one write")
    parser.add_argument("--log", help="append one JSON line per request: arrived, first and last event, real-time ns")
    parser.add_argument("--until-eof", action="store_true", help="end when stdin closes")
    options = parser.parse_args()
    kernel_stamps()
    server = Server(options.port, options.step_s, options.per_write, options.log, options.until_eof)
    print(server.port, flush=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
