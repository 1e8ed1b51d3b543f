"""Where an HTTP/1.1 response ends, for the price of a look at the last four bytes of a read.

httptools decides, always. But a chunked message can only end in CRLF CRLF (the empty trailer section), so a read that does not
is kept and handed over later, together with the one that does: a stream of events ends its reads in LF CRLF and is parsed
once, at its end.
"""

from __future__ import annotations

import httptools

END = b"\r\n\r\n"


class MessageEnd:
    """Follows one response. `feed` takes all bytes in order; `complete`, `error` and `keep_alive` say how it stands."""

    __slots__ = ("_chunked", "_headed", "_length", "_parser", "complete", "error", "keep_alive", "lazy", "until_eof")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headed = False
        self._chunked = False
        self._length = False
        self.complete = False
        self.keep_alive = False
        self.lazy = False
        """Reads of four bytes or more that do not end in `END` need not be fed one by one: keep them for the next feed."""
        self.until_eof = False
        """Neither length nor chunks: the server ends the message by closing."""
        self.error: str | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        lower = name.lower()
        if lower == b"transfer-encoding":
            self._chunked = value.lower().rpartition(b",")[2].strip() == b"chunked"
        elif lower == b"content-length":
            self._length = True

    def on_headers_complete(self) -> None:
        """httptools: the body starts."""
        if 100 <= self._parser.get_status_code() < 200:
            self._chunked = self._length = False
            return
        self._headed = True
        self.keep_alive = bool(self._parser.should_keep_alive())
        self.lazy = self._chunked
        self.until_eof = not self._chunked and not self._length

    def on_message_complete(self) -> None:
        """httptools: the message ended (an interim 1xx is not the message)."""
        if self._headed:
            self.complete = True

    def feed(self, piece: bytes) -> bool:
        """Hand over a read, joined to those kept before it. True when the message is complete or broken."""
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self.error = "the server switched protocols"
        except httptools.HttpParserError as error:
            if not self.complete:
                self.error = f"malformed HTTP: {str(error) or type(error).__name__}"
            self.keep_alive = False
        return self.complete or self.error is not None
