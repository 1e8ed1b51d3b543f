"""Strict patches: what applies is exact, everything else is one sentence."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.boot.patch import FilePatch, PatchError, apply, lines_of, parse

OLD = b"one\ntwo\nthree\n\nfive\nsix\nseven\n"
PATCH = b"""--- a/toy/x.py
+++ b/toy/x.py
@@ -1,7 +1,7 @@
 one
 two
 three
 
-five
+FIVE
 six
 seven
"""  # noqa: W293


def only(data: bytes) -> FilePatch:
    (file,) = parse(data, "p.patch")
    return file


def why(data: bytes, old: bytes | None = OLD) -> str:
    with pytest.raises(PatchError) as caught:
        [apply(file, old) for file in parse(data, "p.patch")]
    return str(caught.value)


def test_an_exact_patch_applies() -> None:
    assert apply(only(PATCH), OLD) == OLD.replace(b"five", b"FIVE")


@pytest.mark.parametrize(
    "head",
    [
        b"From 1234 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] x\n\nBecause.\n---\n toy/x.py | 2 +-\n 1 file changed\n\n"
        b"diff --git a/toy/x.py b/toy/x.py\nindex 123..456 100644\n",
        b"Index: toy/x.py\n===================================================================\n",
        b"diff -ru old/toy/x.py new/toy/x.py\n",
    ],
)
def test_messages_and_headers_of_many_tools(head: bytes) -> None:
    assert apply(only(head + PATCH + b"-- \n2.39.2\n\n"), OLD) == OLD.replace(b"five", b"FIVE")


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (b"a/toy/x.py", b"b/toy/x.py", "toy/x.py"),
        (b"toy/x.py", b"toy/x.py", "toy/x.py"),
        (b"toy-1/toy/x.py\t2026-01-01 00:00:00", b"toy-2/toy/x.py\t2026-01-02", "toy/x.py"),
        (b"toy/b/x.py", b"toy/b/x.py", "toy/b/x.py"),
    ],
)
def test_paths(old: bytes, new: bytes, path: str) -> None:
    assert only(PATCH.replace(b"a/toy/x.py", old).replace(b"b/toy/x.py", new)).path == path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (b"a/../../etc/passwd", "leaves its folder"),
        (b"a/toy/./x.py", "leaves its folder"),
        (b"a/toy//x.py", "leaves its folder"),
        (b"/etc/passwd", "absolute"),
        (b"a/.git/config", "leaves its folder"),
        (b"a/toy\\..\\x.py", "leaves its folder"),
        (b'"a/toy/\\001x.py"', "quoted path"),
        (b"a/toy/\xff.py", "not UTF-8"),
        (b"a/toy/\x1b[31mx.py", "no plain path"),
    ],
)
def test_no_path_leaves_its_folder(path: bytes, words: str) -> None:
    text = why(PATCH.replace(b"a/toy/x.py", path).replace(b"b/toy/x.py", path))
    assert words in text
    assert text.isprintable()


def test_two_files_in_one_header() -> None:
    assert "are not one file" in why(PATCH.replace(b"b/toy/x.py", b"b/toy/y.py"))


def test_counts_that_lie() -> None:
    assert "counts 8 old and 7 new lines, but it ends early (7 old, 7 new)" in why(PATCH.replace(b"-1,7", b"-1,8"))
    assert "has more lines than its header counts" in why(PATCH.replace(b"-1,7 +1,7", b"-1,6 +1,6"))
    assert "more follow" in why(PATCH.replace(b"+1,7", b"+1,4"))
    two = PATCH.replace(b"-1,7 +1,7", b"-1,8 +1,8") + PATCH.replace(b"x.py", b"y.py")
    assert "it ends early" in why(two)


def test_new_line_number_that_lies() -> None:
    assert "its header says new line 3, but it comes to be line 1" in why(PATCH.replace(b"+1,7", b"+3,7"))


def test_no_header() -> None:
    assert why(b"just text\n") == "p.patch holds no diff: no line starts with '--- ' or 'diff --git '"
    assert "repeats a diff" in why(b"@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n")


@pytest.mark.parametrize("lead", [b"", b"    ", b"> ", b"# "])
def test_a_diff_repeated_above_the_first_header(lead: bytes) -> None:
    body = b"".join(lead + line for line in lines_of(PATCH[PATCH.index(b"@@") :]))
    assert "the text above the first header repeats a diff" in why(b"Fix it\n\n" + body + PATCH)
    if lead:
        assert "repeats a diff" in why(b"".join(lead + line for line in lines_of(PATCH)) + PATCH)
    else:
        assert "changes toy/x.py twice" in why(PATCH + PATCH)


def test_trimmed_single_space_lines() -> None:
    assert "line 7: this context line lost its leading space" in why(PATCH.replace(b"\n \n", b"\n\n"))


def test_blanks_trimmed_at_the_end_of_lines() -> None:
    assert "line 2 differs only in blanks at its end: the patch was trimmed" in why(PATCH, OLD.replace(b"two", b"two  "))


def test_line_ends() -> None:
    assert "the patch has CRLF, the file LF" in why(PATCH.replace(b"\n", b"\r\n"))
    assert "the file has CRLF, the patch LF" in why(PATCH, OLD.replace(b"\n", b"\r\n"))
    both = apply(only(PATCH.replace(b"\n", b"\r\n")), OLD.replace(b"\n", b"\r\n"))
    assert both == OLD.replace(b"five", b"FIVE").replace(b"\n", b"\r\n")


def test_already_applied() -> None:
    assert "hunk at line 1: it is already applied" in why(PATCH, OLD.replace(b"five", b"FIVE"))


def test_an_offset_is_named_and_refused() -> None:
    assert "would at line 3 (offset +2)" in why(PATCH, b"a\nb\n" + OLD)


def test_what_does_not_match_is_shown() -> None:
    text = why(PATCH, OLD.replace(b"three", b"3\x1b[31m"))
    assert "line 3 does not match: the patch wants 'three', the file has '3?[31m'" in text
    assert "the file has ended" in why(PATCH, b"one\ntwo\n")
    assert "does not exist in the installed package" in why(PATCH, None)


def test_every_failing_hunk_is_listed() -> None:
    data = b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n 1\n-9\n+b\n@@ -3,2 +3,2 @@\n 3\n-8\n+d\n"
    text = why(data, b"1\n2\n3\n4\n")
    assert "hunk at line 1: line 2" in text
    assert "hunk at line 3: line 4" in text


def test_overlapping_hunks() -> None:
    data = b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n 1\n-2\n+b\n@@ -2,2 +2,2 @@\n 2\n-3\n+c\n"
    assert "overlaps" in why(data, b"1\n2\n3\n4\n")


def test_insertion_without_context() -> None:
    assert "no line of context" in why(b"--- a/x\n+++ b/x\n@@ -1,0 +2 @@\n+b\n", b"1\n2\n")


def test_create_and_delete() -> None:
    head = b"diff --git a/t/n.py b/t/n.py\nnew file mode 100644\nindex 0..1\n"
    create = head + b"--- /dev/null\n+++ b/t/n.py\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    assert (only(create).action, only(create).path) == ("create", "t/n.py")
    assert apply(only(create), None) == b"a\nb\n"
    assert "already applied?" in why(create, b"a\nb\n")
    assert why(create, b"other").endswith("t/n.py exists already")
    delete = b"--- a/t/n.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"
    assert only(delete).action == "delete"
    assert apply(only(delete), b"a\nb\n") is None
    assert "holds more than the patch removes" in why(delete, b"a\nb\nc\n")
    empty = b"diff --git a/t/e.py b/t/e.py\nnew file mode 100644\nindex 0..0\n"
    assert apply(only(empty), None) == b""
    assert "no regular file" in why(create.replace(b"100644", b"120000"), None)


@pytest.mark.parametrize(
    "data",
    [
        b"diff --git a/t/x b/t/y\nsimilarity index 100%\nrename from t/x\nrename to t/y\n",
        b"diff --git a/t/x b/t/x\nindex 1..2 100644\nGIT binary patch\nliteral 3\n",
        b"diff --git a/t/x b/t/x\nold mode 100644\nnew mode 100755\n",
        b"Binary files a/t/x and b/t/x differ\n",
    ],
)
def test_what_cannot_be_applied_here(data: bytes) -> None:
    assert why(data)


def test_no_newline_at_the_end() -> None:
    data = b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n 1\n-2\n\\ No newline at end of file\n+3\n\\ No newline at end of file\n"
    assert apply(only(data), b"1\n2") == b"1\n3"
    assert "disagree on the line feed" in why(data, b"1\n2\n")


def test_a_removed_line_that_looks_like_a_header() -> None:
    data = b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n 1\n--- q\n+++ r\n"
    assert apply(only(data), b"1\n-- q\n") == b"1\n++ r\n"


TEXT = st.lists(st.sampled_from([b"a", b"b", b"", b" ", b"-- x", b"++ y", b"@@ -1 +1 @@", b"\ttab", b"cr\r"]), max_size=12)


@settings(max_examples=100, deadline=None)
@given(TEXT, TEXT, st.booleans())
def test_diffs_of_difflib_apply_exactly(old: list[bytes], new: list[bytes], newline: bool) -> None:
    before = b"\n".join(old) + (b"\n" if newline and old else b"")
    after = b"\n".join(new) + b"\n"
    if before == after or not before:
        return
    out = []
    for line in difflib.diff_bytes(difflib.unified_diff, lines_of(before), lines_of(after), b"a/t/x", b"b/t/x"):
        out.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    assert apply(only(b"".join(out)), before) == after


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*lines_of(PATCH), b"diff --git a/x b/x\n", b"\n", b"\\ No\n", b"-- \n", b"+\n"]), max_size=14))
def test_junk_is_one_sentence(parts: list[bytes]) -> None:
    reasons = ""
    try:
        [apply(file, OLD) for file in parse(b"".join(parts), "p")]
    except PatchError as error:
        reasons = str(error)
    assert reasons.isprintable()


def test_git_agrees(tmp_path: Path) -> None:
    """git is the oracle: its own diffs of edits, creations and deletions apply here to the same bytes."""

    def git(*args: str) -> bytes:
        identity = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "core.autocrlf=false"]
        return subprocess.run(["git", *identity, *args], cwd=tmp_path, check=True, capture_output=True).stdout

    git("init", "-q")
    before = {"t/a.py": OLD * 3, "t/gone.py": b"x\n", "t/end.py": b"no newline"}
    after = {"t/a.py": (OLD * 3).replace(b"six", b"SIX"), "t/new.py": b"\n", "t/empty.py": b"", "t/end.py": b"no newline\n"}
    for files in (before, after):
        for path in before:
            (tmp_path / path).unlink(missing_ok=True)
        for path, data in files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(data)
        git("add", "-A")
        git("commit", "-qm", "x")
    diff = git("format-patch", "-1", "--stdout")
    result = dict(before)
    for file in parse(diff, "p"):
        new = apply(file, result.pop(file.path, None))
        if new is not None:
            result[file.path] = new
    assert result == after
