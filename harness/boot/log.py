"""An engine's log: read within bounds, cleaned of control characters, redacted when the leg ends.

Whatever an engine printed is hostile until it has been through `clean`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from evenhand.boot.environment import redact
from evenhand.store import fresh

READ_BYTES = 4 << 20
"""Read from each end of a longer log."""
KEEP_BYTES = 4 << 20
"""Kept of each end of a longer log when the leg ends."""
TAIL_BYTES = 64 << 10

# CSI; OSC, DCS and the like; the rest
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
# C0 and C1 but tab and line feed; marks that turn the writing direction or are invisible
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def clean(text: str) -> str:
    """Text fit for a terminal and a file: no escape sequences, no control characters, progress bars as lines."""
    text = _ESCAPE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return _CONTROL.sub("", text)


def one_line(text: str, limit: int = 500) -> str:
    """`clean` text on one line of at most `limit` characters, for a reason or a message."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= limit else flat[: limit - 4] + " ..."


def _ends(path: Path, head: int, tail: int) -> tuple[bytes, int, bytes]:
    """First bytes, number of bytes left out, last bytes. A file that is not there is empty."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= head + tail:
                return file.read(head + tail), 0, b""
            first = file.read(head)
            file.seek(size - tail)
            return first, size - head - tail, file.read(tail)
    except FileNotFoundError:
        return b"", 0, b""


def read_log(path: str | Path, limit: int = READ_BYTES) -> str:
    """The log, cleaned. Of one longer than twice `limit` bytes, both ends and a line that says what was left out."""
    first, cut, last = _ends(Path(path), limit, limit)
    text = first.decode("utf-8", "replace")
    if cut:
        text += f"\n... {cut} bytes left out ...\n" + last.decode("utf-8", "replace")
    return clean(text)


def tail_log(path: str | Path, limit: int = TAIL_BYTES) -> str:
    """The last `limit` bytes of the log, cleaned."""
    first, _, last = _ends(Path(path), 0, limit)
    return clean((first or last).decode("utf-8", "replace"))


def last_lines(path: str | Path, count: int = 5) -> str:
    """The last lines that say something, redacted, joined by " | ", for a reason; "" for an empty log."""
    lines = [line.strip() for line in tail_log(path).splitlines()]
    return " | ".join(redact(line)[:300] for line in [line for line in lines if line][-count:])


def finish_log(path: str | Path, secrets: Iterable[str] = (), limit: int = KEEP_BYTES) -> None:
    """Redact the log, by rename, and keep both ends of a flooded one. Bytes that say nothing secret stay as they came."""
    path = Path(path)
    first, cut, last = _ends(path, limit, limit)
    if not first:
        return
    text = first.decode("utf-8", "surrogateescape")
    if cut:
        text += f"\n... {cut} bytes left out ...\n" + last.decode("utf-8", "surrogateescape")
    redacted = redact(text, secrets)
    if redacted == text and not cut:
        return
    new = path.with_name(path.name + ".new")
    with fresh(new) as file:
        file.write(redacted.encode("utf-8", "surrogateescape"))
    new.replace(path)
