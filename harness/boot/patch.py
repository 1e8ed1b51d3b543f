"""Unified diffs, strictly: zero fuzz, zero offset, honest counts, no path outside its folder. Pure functions of bytes.

What other tools repair silently (an offset, a trimmed line, a count that lies, a second copy of the diff in the message) is an
error here, said in one sentence: a gate must know which bytes ran.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from evenhand.engines.base import EngineError

MAX_PATCH_BYTES = 8 << 20
MAX_FILES = 2000
_REASONS_KEPT = 10

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?:\s|$)")
_QUOTED = re.compile(rb"^[\s>#|]+")
_UNSUPPORTED = {
    b"rename from ": "renames",
    b"rename to ": "renames",
    b"copy from ": "copies",
    b"copy to ": "copies",
    b"GIT binary patch": "a binary change",
    b"Binary files ": "a binary change",
}

Action = Literal["modify", "create", "delete"]


class PatchError(EngineError):
    """A patch that cannot be taken literally. `reasons` holds one sentence for each thing that is wrong."""

    def __init__(self, *reasons: str) -> None:
        self.reasons = list(reasons)
        shown = self.reasons[:_REASONS_KEPT]
        if len(self.reasons) > len(shown):
            shown.append(f"and {len(self.reasons) - len(shown)} more")
        super().__init__("; ".join(shown))


class Hunk(msgspec.Struct, frozen=True, kw_only=True):
    """One hunk. Lines keep their line ends; the last one has none where the diff says so."""

    old_start: int
    new_start: int
    old: list[bytes]
    """Context and removed lines."""
    new: list[bytes]
    """Context and added lines."""
    line: int
    """Line of the patch on which its header stands, from 1."""


class FilePatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a patch does to one file."""

    path: str
    """Relative, forward slashes, free of "..", as the diff's header names it without a/ or b/."""
    action: Action
    hunks: list[Hunk]
    patch: str
    """Name of the patch, for messages."""


def lines_of(data: bytes) -> list[bytes]:
    """Lines with their line feeds; the last one may lack it. (bytes.splitlines would also split at a lone CR.)"""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


# --- parse ------------------------------------------------------------------------------------------------------------


def parse(data: bytes, name: str) -> list[FilePatch]:
    """The files a diff changes, in its order. `name` is the patch's, for messages. Raises PatchError."""
    if len(data) > MAX_PATCH_BYTES:
        raise PatchError(f"{name} is larger than {MAX_PATCH_BYTES} bytes")
    found = _Parser(data, name).run()
    if not found:
        raise PatchError(f"{name} holds no diff: no line starts with '--- ' or 'diff --git '")
    if len(found) > MAX_FILES:
        raise PatchError(f"{name} changes more than {MAX_FILES} files")
    seen: set[str] = set()
    for file in found:
        if file.path in seen:
            raise PatchError(f"{name} changes {file.path} twice: is the diff repeated?")
        seen.add(file.path)
    return found


class _Parser:
    def __init__(self, data: bytes, name: str) -> None:
        self.lines, self.name, self.at = lines_of(data), name, 0
        self.files: list[FilePatch] = []

    def error(self, text: str, line: int | None = None) -> PatchError:
        return PatchError(f"{self.name}, line {(self.at if line is None else line) + 1}: {text}")

    def peek(self, ahead: int = 0) -> bytes:
        """A line without its end; b"" behind the last."""
        at = self.at + ahead
        return self.lines[at].rstrip(b"\r\n") if at < len(self.lines) else b""

    def run(self) -> list[FilePatch]:
        while self.at < len(self.lines):
            line = self.peek()
            if line.startswith(b"diff --git "):
                self.git_file()
            elif line.startswith(b"--- ") and self.peek(1).startswith(b"+++ "):
                self.plain_file()
            else:
                self.text(line)
                self.at += 1
        return self.files

    def text(self, line: bytes) -> None:
        """A line outside of every diff: a message, or a diff that another tool might apply."""
        bare = _QUOTED.sub(b"", line)
        if _HUNK.match(bare) or bare.startswith(b"diff --git ") or (bare.startswith(b"--- ") and b"+++ " in self.peek(1)):
            if not self.files:
                raise self.error("the text above the first header repeats a diff, which other tools would apply too: remove it")
            raise self.error("a hunk or a header stands outside of a diff: its '---' or '+++' line is missing or indented")
        if self.files and line[:1] in b" +-" and line and not self.signature(line):
            raise self.error("the hunk above has more lines than its header counts")
        if any(line.startswith(prefix) for prefix in _UNSUPPORTED):
            raise self.error("a binary change or a rename outside of a diff cannot be applied here")

    def signature(self, line: bytes) -> bool:
        """The "-- " with a version below it that ends a mailed patch."""
        return line.rstrip() == b"--" and not [rest for rest in self.lines[self.at + 2 :] if rest.strip()]

    def git_file(self) -> None:
        start, header = self.at, self.peek()
        self.at += 1
        action: Action = "modify"
        while self.at < len(self.lines):
            line = self.peek()
            for prefix, what in _UNSUPPORTED.items():
                if line.startswith(prefix):
                    raise self.error(f"{what} cannot be applied here: give a diff made with --no-renames and --text")
            if line.startswith(b"new file mode "):
                action = "create"
                if not line.startswith(b"new file mode 100"):
                    raise self.error("the new file is no regular file")
            elif line.startswith(b"deleted file mode "):
                action = "delete"
            elif not line.startswith((b"index ", b"old mode ", b"new mode ", b"similarity ", b"dissimilarity ")):
                break
            self.at += 1
        if self.peek().startswith(b"--- ") and self.peek(1).startswith(b"+++ "):
            self.plain_file(action)
            return
        if action == "modify":
            raise self.error("no hunks follow: a change of mode alone does nothing for a Python package", start)
        half = header[len(b"diff --git ") :]
        middle = len(half) // 2
        self.files.append(
            FilePatch(path=self.path(half[:middle], half[middle + 1 :], start), action=action, hunks=[], patch=self.name)
        )

    def plain_file(self, told: Action | None = None) -> None:
        start = self.at
        old, new = (self.peek(n)[4:].split(b"\t")[0].rstrip() for n in (0, 1))
        action: Action = "create" if old == b"/dev/null" else "delete" if new == b"/dev/null" else "modify"
        if told not in (None, action):
            raise self.error(f"the header says {told}, the '---' and '+++' lines say {action}")
        path = self.path(new if action == "create" else old, old if action == "delete" else new, start)
        self.at += 2
        hunks: list[Hunk] = []
        while _HUNK.match(self.peek()):
            hunks.append(self.hunk())
        if not hunks:
            raise self.error(f"no hunk follows the header of {path}")
        for one in hunks:
            if (action == "create" and one.old) or (action == "delete" and one.new):
                raise self.error(f"{path} cannot be made from or leave nothing: the hunk says otherwise", one.line - 1)
        self.files.append(FilePatch(path=path, action=action, hunks=hunks, patch=self.name))

    def path(self, old: bytes, new: bytes, line: int) -> str:
        """The one path that both sides name, without their first component where that differs or is a/ and b/."""
        for side in (old, new):
            if side.startswith(b'"'):
                raise self.error("a quoted path cannot be used: no control characters, quotes or bytes beyond UTF-8", line)
            if side.startswith(b"/"):
                raise self.error(f"the path {_show(side)} is absolute", line)
        try:
            sides = [side.decode().split("/") for side in (old, new)]
        except UnicodeDecodeError:
            raise self.error("a path is not UTF-8", line) from None
        a, b = sides
        stripped = a[1:] == b[1:] and len(a) > 1 and (a != b or a[0] in ("a", "b"))
        if a != b and not stripped:
            raise self.error(f"the two paths {_show(old)} and {_show(new)} are not one file", line)
        parts = a[1:] if stripped else a
        bad = [part for part in parts if part in ("", ".", "..") or not part.isprintable() or "\\" in part or part == ".git"]
        if bad:
            raise self.error(f"the path {_show('/'.join(parts).encode())} leaves its folder or is no plain path", line)
        return "/".join(parts)

    def hunk(self) -> Hunk:
        start = self.at
        match = _HUNK.match(self.peek())
        assert match is not None
        old_start, old_count, new_start, new_count = (1 if group is None else int(group) for group in match.groups())
        old: list[bytes] = []
        new: list[bytes] = []
        sides: list[list[bytes]] = []
        self.at += 1

        def lie(what: str) -> PatchError:
            told, seen = f"{old_count} old and {new_count} new lines", f"{len(old)} old, {len(new)} new"
            return self.error(f"the hunk's header counts {told}, but {what} ({seen})", start)

        while True:
            full = len(old) == old_count and len(new) == new_count
            kind = self.lines[self.at][:1] if self.at < len(self.lines) else b""
            if kind == b"\\":
                # "No newline at end of file" belongs to the line above
                for side in sides:
                    side[-1] = side[-1].removesuffix(b"\n")
                sides = []
                self.at += 1
                continue
            if full:
                break
            if kind in (b"\n", b"\r") and not self.ends_here():
                raise self.error(
                    "this context line lost its leading space: an editor or a mail program trimmed the patch; make it again"
                )
            sides = {b" ": [old, new], b"-": [old], b"+": [new]}.get(kind, [])
            if not sides or self.header():
                raise lie("it ends early")
            if (kind in b" -" and len(old) == old_count) or (kind in b" +" and len(new) == new_count):
                raise lie("more follow")
            for side in sides:
                side.append(self.lines[self.at][1:])
            self.at += 1
        return Hunk(old_start=old_start, new_start=new_start, old=old, new=new, line=start + 1)

    def header(self) -> bool:
        """Whether a new file's "---" and "+++" and "@@" stand here (and not a removed line that begins with "-- ")."""
        return self.peek().startswith(b"--- ") and self.peek(1).startswith(b"+++ ") and bool(_HUNK.match(self.peek(2)))

    def ends_here(self) -> bool:
        """Whether only blank lines, or another diff, follow."""
        for at in range(self.at, len(self.lines)):
            line = self.lines[at].rstrip(b"\r\n")
            if line:
                return bool(_HUNK.match(line)) or line.startswith((b"diff --git ", b"--- "))
        return True


# --- apply ------------------------------------------------------------------------------------------------------------


def apply(file: FilePatch, old: bytes | None) -> bytes | None:
    """The file's new content, None for deleted; `old` is None where there is no such file. Raises PatchError, all reasons."""
    where = f"{file.patch}: {file.path}"
    if file.action == "create":
        if old is not None:
            same = old == b"".join(line for hunk in file.hunks for line in hunk.new)
            raise PatchError(
                f"{where} exists already" + (", with the very content: is the patch already applied?" if same else "")
            )
        return _new_content(file, where)
    if old is None:
        raise PatchError(f"{where} does not exist in the installed package")
    new = _apply_hunks(file, where, lines_of(old))
    if file.action == "delete":
        if new:
            raise PatchError(f"{where} is to be deleted, but holds more than the patch removes")
        return None
    if new == old:
        raise PatchError(f"{where} would not change: the patch does nothing there")
    return new


def _new_content(file: FilePatch, where: str) -> bytes:
    if len(file.hunks) > 1 or any(hunk.old_start != 0 or hunk.new_start != 1 for hunk in file.hunks):
        raise PatchError(f"{where} is a new file, so one hunk '@@ -0,0 +1,N @@' must hold it")
    return b"".join(line for hunk in file.hunks for line in hunk.new)


def _apply_hunks(file: FilePatch, where: str, old: list[bytes]) -> bytes:
    out: list[bytes] = []
    done = 0
    reasons: list[str] = []
    for hunk in file.hunks:
        start = hunk.old_start - 1 if hunk.old else hunk.old_start
        at = f"{where}, hunk at line {hunk.old_start}"
        if start < done:
            reasons.append(f"{at}: it overlaps the hunk above or stands before it")
            continue
        position = len(out) + start - done
        if not hunk.old:
            reasons.append(f"{at}: it has no line of context, so nothing says that it belongs there")
        elif old[start : start + len(hunk.old)] != hunk.old:
            reasons.append(f"{at}: {_diagnose(old, hunk, start)}")
        elif not reasons and hunk.new_start != (position + 1 if hunk.new else position):
            reasons.append(
                f"{at}: its header says new line {hunk.new_start}, but it comes to be line {position + 1}: make it again"
            )
        out += old[done:start] + hunk.new
        done = start + len(hunk.old)
    if reasons:
        raise PatchError(*reasons)
    return b"".join(out + old[done:])


def _find(lines: list[bytes], block: list[bytes], near: int) -> int | None:
    """Index nearest to `near` at which `block` stands."""
    places = [at for at in range(len(lines) - len(block) + 1) if lines[at] == block[0] and lines[at : at + len(block)] == block]
    return min(places, key=lambda at: abs(at - near)) if places else None


def _diagnose(old: list[bytes], hunk: Hunk, start: int) -> str:
    """Why a hunk does not apply, in the words that help most."""
    have = old[start : start + len(hunk.old)]
    applied = hunk.new_start - 1
    if hunk.new and hunk.new != hunk.old and old[applied : applied + len(hunk.new)] == hunk.new:
        return "it is already applied"
    place = _find(old, hunk.old, start)
    if place is not None:
        return f"it does not apply there, but would at line {place + 1} (offset {place - start:+d}): make the patch again"
    if len(have) == len(hunk.old):
        if [line.rstrip(b"\r\n") for line in have] == [line.rstrip(b"\r\n") for line in hunk.old]:
            if any(line.endswith(b"\r\n") for line in hunk.old) != any(line.endswith(b"\r\n") for line in have):
                patch_has = any(line.endswith(b"\r\n") for line in hunk.old)
                return "the line ends differ: " + (
                    "the patch has CRLF, the file LF" if patch_has else "the file has CRLF, the patch LF"
                )
            return "the file and the patch disagree on the line feed at the end of the file"
        if [line.rstrip() for line in have] == [line.rstrip() for line in hunk.old]:
            at = next(n for n, (a, b) in enumerate(zip(have, hunk.old, strict=True)) if a != b)
            return f"line {start + at + 1} differs only in blanks at its end: the patch was trimmed; make it again"
    for number, wanted in enumerate(hunk.old):
        found = have[number] if number < len(have) else None
        if found != wanted:
            there = "the file has ended" if found is None else f"the file has {_show(found)}"
            return f"line {start + number + 1} does not match: the patch wants {_show(wanted)}, {there}"
    return "it does not apply"


def _show(data: bytes) -> str:
    """Bytes of a hostile file for a message."""
    text = data.rstrip(b"\r\n").decode("utf-8", "replace")
    text = "".join(char if char.isprintable() else "?" for char in text)
    return repr(text if len(text) <= 60 else text[:57] + "...")
