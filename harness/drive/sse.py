"""Server-sent events out of bytes, however they were cut: a pure incremental splitter.

Line ends are LF, CR and CRLF and nothing else (U+2028 is text). Lines are split as bytes, so a character cut in two is whole
again before anyone decodes it. Only `data` and comments matter here; other fields are skipped.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Splitter:
    """Feed reads, get payloads. Counts comments in `comments`."""

    def __init__(self) -> None:
        self._tail = b""
        """Start of a line whose end has not come."""
        self._data: list[bytes] = []
        self._skip_lf = False
        """The last byte fed was a CR that ended a line: an LF that follows belongs to it."""
        self._first = True
        self.comments = 0

    @property
    def pending(self) -> bool:
        """Whether part of an event has come since the last complete one."""
        return bool(self._tail or self._data)

    def feed(self, piece: bytes) -> list[bytes]:
        """Payloads completed by these bytes, their data lines joined with LF."""
        if not piece:
            return []
        if self._skip_lf:
            self._skip_lf = False
            if piece[:1] == b"\n":
                piece = piece[1:]
                if not piece:
                    return []
        text = self._tail + piece
        if self._first:
            if _BOM.startswith(text[:3]) and len(text) < 3:
                self._tail = text
                return []
            self._first = False
            text = text.removeprefix(_BOM)
        self._skip_lf = text[-1:] == b"\r"
        lines = text.split(b"\n") if b"\r" not in text else _LINE_END.split(text)
        self._tail = lines.pop()
        events: list[bytes] = []
        for line in lines:
            self._line(line, events)
        return events

    def close(self) -> list[bytes]:
        """The body ended cleanly: an event whose last blank line is missing is given out too."""
        events: list[bytes] = []
        if self._tail:
            tail, self._tail = self._tail, b""
            self._line(tail, events)
        self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line:
            if self._data:
                payload = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                self._data = []
                if payload:
                    events.append(payload)
        elif line[0] == 0x3A:
            self.comments += 1
        elif line == b"data":
            self._data.append(b"")
