"""Overlays with a small package and real interpreters: the installation stays as it is, and what ran is proved."""

from __future__ import annotations

import hashlib
import os
import py_compile
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from boot_fake import Toy

from evenhand.arms import ArmPreparer
from evenhand.boot.overlay import Overlay, PatchError, build_overlay, module_name
from evenhand.boot.patches import Patches, commit_changes, patch_changes, read_patches, series
from evenhand.engines.base import EngineError, Settings
from evenhand.scenario import Arm
from evenhand.store import StoreError

FILES = {
    "__init__.py": "from toy import core\n",
    "core.py": "VALUE = 1\n",
    "data.json": "{}\n",
    "sub/__init__.py": "",
    "sub/deep.py": "from toy.core import VALUE\nDEEP = VALUE + 1\n",
    "sub/other.py": "OTHER = 1\n",
    "_C.so": "\x7fELF",
}
PATCH = b"--- a/toy/core.py\n+++ b/toy/core.py\n@@ -1 +1 @@\n-VALUE = 1\n+VALUE = 2\n"
SHOW = "import toy.core, toy.sub.deep, toy.sub.other as o; print(toy.core.VALUE, toy.sub.deep.DEEP, toy.__file__, o.__cached__)"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the package `toy` installed."""
    for path, text in FILES.items():
        place = tmp_path / "site" / "toy" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path / "site"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def run(overlay: Overlay, site: Path, code: str = SHOW, **env: str) -> str:
    """Run an interpreter as an engine's would run: PYTHONPATH, with the installation behind the overlay."""
    names = {**overlay.env(), **env}
    names["PYTHONPATH"] = ":".join([names["PYTHONPATH"], str(site)])
    return subprocess.run([sys.executable, "-c", code], env=names, capture_output=True, text=True, check=True, cwd="/").stdout


def why(call: object, *args: object) -> str:
    with pytest.raises(EngineError) as caught:
        call(*args)  # type: ignore[operator]
    return str(caught.value)


def test_a_patched_arm_runs_the_patch_and_proves_it(site: Path, tmp_path: Path) -> None:
    leg = tmp_path / "run" / "000-B"
    patches = patch_changes(site / "toy", [("p", PATCH)])
    before = snapshot(site)
    overlay = build_overlay(site / "toy", leg / "overlay", patches)
    assert run(overlay, site).split()[:3] == ["2", "3", str(overlay.folder / "toy" / "__init__.py")]
    (row,) = overlay.finish(leg)
    digest = hashlib.sha256(b"VALUE = 2\n").hexdigest()
    assert (row.path, row.action, row.loaded_from) == ("core.py", "modify", "000-B/overlay/toy/core.py")
    assert row.overlay_sha256 == row.loaded_sha256 == digest
    assert row.installed_sha256_before == row.installed_sha256_after == hashlib.sha256(b"VALUE = 1\n").hexdigest()
    assert overlay.prove()[1] == []
    assert snapshot(site) == before
    assert (overlay.folder / "toy" / "sub").is_symlink()
    assert (overlay.folder / "toy" / "_C.so").is_symlink()
    assert not (overlay.folder / "toy" / "core.py").is_symlink()


def test_a_baseline_runs_the_same_files_unchanged(site: Path, tmp_path: Path) -> None:
    overlay = build_overlay(site / "toy", tmp_path / "overlay", None, touch=["core.py", "new.py", "fresh/new.py"])
    assert run(overlay, site).split()[:2] == ["1", "2"]
    (row,) = overlay.finish(tmp_path)
    assert row.overlay_sha256 == row.loaded_sha256 == row.installed_sha256_before
    assert not (overlay.folder / "toy" / "fresh").exists()
    plain = build_overlay(site / "toy", tmp_path / "plain", None)
    assert (plain.folder / "toy").is_symlink()
    assert run(plain, site).split()[2] == str(plain.folder / "toy" / "__init__.py")


def test_bytecode_is_never_stale_and_never_written_to_the_installation(site: Path, tmp_path: Path) -> None:
    """The installed bytecode of the touched file has the very size and time of the patched source: Python would trust it."""
    for path in ("core.py", "sub/deep.py", "sub/other.py", "__init__.py"):
        py_compile.compile(str(site / "toy" / path), doraise=True)
    patches = patch_changes(
        site / "toy",
        [("p", PATCH + PATCH.replace(b"core", b"sub/other").replace(b"VALUE", b"OTHER"))],
    )
    overlay = build_overlay(site / "toy", tmp_path / "overlay", patches)
    for path in ("core.py", "sub/other.py"):
        stat = (site / "toy" / path).stat()
        os.utime(overlay.folder / "toy" / path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    before = snapshot(site)
    assert run(overlay, site).split()[:2] == ["2", "3"]
    assert run(overlay, site, PYTHONDONTWRITEBYTECODE="").split()[:2] == ["2", "3"]  # even when bytecode is written
    assert snapshot(site) == before
    assert (overlay.folder / "toy" / "sub" / "__pycache__").is_dir()
    assert {load.sha256 for load in overlay.loads()["toy.core"]} == {hashlib.sha256(b"VALUE = 2\n").hexdigest()}
    assert len(overlay.loads()["toy.core"]) == 2


def test_create_and_delete(site: Path, tmp_path: Path) -> None:
    data = (
        b"--- /dev/null\n+++ b/toy/fresh/new.py\n@@ -0,0 +1 @@\n+NEW = 1\n"
        b"--- a/toy/sub/other.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-OTHER = 1\n"
    )
    overlay = build_overlay(site / "toy", tmp_path / "overlay", patch_changes(site / "toy", [("p", data)]))
    code = (
        "from importlib.util import find_spec as f; import toy.fresh.new as n; print(n.NEW, f('toy.sub.other'), f('toy.core'))"
    )
    assert run(overlay, site, code).startswith("1 None ModuleSpec")
    rows = {row.path: row for row in overlay.finish(tmp_path)}
    assert rows["fresh/new.py"].action == "create"
    assert rows["fresh/new.py"].installed_sha256_before is None
    assert rows["fresh/new.py"].loaded_sha256 == rows["fresh/new.py"].overlay_sha256
    assert rows["sub/other.py"].action == "delete"
    assert rows["sub/other.py"].overlay_sha256 is rows["sub/other.py"].loaded_sha256 is None


def test_a_process_that_takes_the_module_from_elsewhere_is_told(site: Path, tmp_path: Path) -> None:
    overlay = build_overlay(site / "toy", tmp_path / "overlay", patch_changes(site / "toy", [("p", PATCH)]))
    run(overlay, site)
    run(overlay, site, f"import sys; sys.path.insert(0, {str(site)!r}); import toy.core; print(toy.core.VALUE)")
    rows, wrong = overlay.prove()
    assert rows[0].loaded_from == str(site / "toy" / "core.py")
    assert f"loaded toy.core from {site / 'toy' / 'core.py'}, not as the overlay has it" in wrong[0]


def test_every_process_proves_for_itself(site: Path, tmp_path: Path) -> None:
    overlay = build_overlay(site / "toy", tmp_path / "overlay", patch_changes(site / "toy", [("p", PATCH)]))
    code = (
        "import multiprocessing as m, toy.core\n"
        "if __name__ == '__main__':\n"
        "    c = m.get_context('spawn'); p = c.Process(target=print, args=(1,)); p.start(); p.join()\n"
        "    import subprocess, sys; subprocess.run([sys.executable, '-c', 'import toy.core'])\n"
    )
    script = tmp_path / "main.py"
    script.write_text(code)
    run(overlay, site, f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert len({load.pid for load in overlay.loads()["toy.core"]}) >= 2


def test_the_environments_own_sitecustomize_still_runs(site: Path, tmp_path: Path) -> None:
    (site / "sitecustomize.py").write_text("import sys; sys.own = 7\n")
    overlay = build_overlay(site / "toy", tmp_path / "overlay", patch_changes(site / "toy", [("p", PATCH)]))
    assert run(overlay, site, "import sys, toy.core; print(sys.own, toy.core.VALUE)") == "7 2\n"
    assert "toy.core" in overlay.loads()


def test_junk_in_the_proof_is_no_proof(site: Path, tmp_path: Path) -> None:
    overlay = build_overlay(site / "toy", tmp_path / "overlay", patch_changes(site / "toy", [("p", PATCH)]))
    overlay.proof.write_bytes(b'{"pid": 1}\n\xff\xfe\n{"pid":"x","module":"toy.core","file":"f","sha256":"s"}\n{"torn')
    assert overlay.prove() == (overlay.files, [])


def test_rebuilding_in_place(site: Path, tmp_path: Path) -> None:
    """Legs of one arm use one path: it goes into the keys of compile caches."""
    patches = patch_changes(site / "toy", [("p", PATCH)])
    for _ in range(2):
        overlay = build_overlay(site / "toy", tmp_path / "overlay", patches, proof=tmp_path / "leg.jsonl")
        run(overlay, site)
        assert len(overlay.loads()["toy.core"]) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    assert "exists and is no overlay" in why(build_overlay, site / "toy", tmp_path / "mine", patches)
    assert (site / "toy" / "sub" / "deep.py").exists()


def test_an_installation_that_changed_in_between(site: Path, tmp_path: Path) -> None:
    patches = patch_changes(site / "toy", [("p", PATCH)])
    (site / "toy" / "core.py").write_text("VALUE = 3\n")
    assert "core.py" in why(build_overlay, site / "toy", tmp_path / "overlay", patches)
    assert not (tmp_path / "overlay").exists()


def test_an_edit_of_the_installation_during_the_run_shows(site: Path, tmp_path: Path) -> None:
    overlay = build_overlay(site / "toy", tmp_path / "overlay", patch_changes(site / "toy", [("p", PATCH)]))
    (site / "toy" / "core.py").write_text("VALUE = 3\n")
    (row,) = overlay.finish(tmp_path)
    assert row.installed_sha256_before != row.installed_sha256_after


def test_files_outside_of_the_package(site: Path, tmp_path: Path) -> None:
    assert "touches 'tests/test_core.py', which is outside of the package 'toy'" in why(
        patch_changes, site / "toy", [("p", PATCH.replace(b"toy/core", b"tests/test_core"))]
    )
    assert patch_changes(site / "toy", [("p", PATCH.replace(b"a/toy", b"a/python/toy").replace(b"b/toy", b"b/python/toy"))])
    (tmp_path / "secret.py").write_text("VALUE = 1\n")
    (site / "toy" / "link.py").symlink_to(tmp_path / "secret.py")
    assert "leads out of the package" in why(patch_changes, site / "toy", [("p", PATCH.replace(b"core", b"link"))])


def test_series(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "patches"
    (folder / "more").mkdir(parents=True)
    (folder / "one.patch").write_bytes(PATCH)
    (folder / "more/two.diff").write_bytes(PATCH.replace(b"VALUE = 2", b"VALUE = 3").replace(b"VALUE = 1", b"VALUE = 2"))
    (folder / "series").write_text("# ours\none.patch\n\nmore/two.diff -p1 # the second\n")
    assert [name for name, _ in series(folder)] == ["one.patch", "more/two.diff"]
    patches = patch_changes(site / "toy", series(folder))
    assert patches.files == {"core.py": b"VALUE = 3\n"}
    (folder / "extra.patch").touch()
    (folder / "series").write_text("one.patch\none.patch\nmissing.patch\n../series\nmore/two.diff -p0\n")
    text = why(series, folder)
    for words in (
        "patches/extra.patch is not listed in series",
        "line 2: 'one.patch' is listed twice",
        "line 3: 'missing.patch' is not in the folder",
        "line 4: '../series' leaves the folder",
        "line 5: 'more/two.diff' has options '-p0'",
    ):
        assert words in text
    (folder / "series").write_text("# nothing\n")
    assert "not listed" in why(series, folder)
    (folder / "series").unlink()
    assert "patches/series cannot be read: No such file or directory" in why(series, folder)


def test_the_second_patch_of_a_series_sees_the_first(site: Path) -> None:
    assert "hunk at line 1: it is already applied" in why(patch_changes, site / "toy", [("a", PATCH), ("b", PATCH)])
    back = b"--- a/toy/core.py\n+++ b/toy/core.py\n@@ -1 +1 @@\n-VALUE = 2\n+VALUE = 1\n"
    assert "undo each other" in why(patch_changes, site / "toy", [("a", PATCH), ("b", back)])


@pytest.fixture
def checkout(site: Path, tmp_path: Path) -> Path:
    """A git checkout whose second commit changes, adds and deletes files of the package."""
    root = tmp_path / "checkout"
    for path, text in FILES.items():
        place = root / "python" / "toy" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (root / ".gitignore").write_text("*.so\n_version.py\n")
    (site / "toy" / "_version.py").write_text("version = 1\n")

    def git(*args: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@x"]
        subprocess.run(["git", *identity, *args], cwd=root, check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    git("tag", "first")
    (root / "python/toy/core.py").write_text("VALUE = 2\n")
    (root / "python/toy/added.py").write_text("")
    (root / "python/toy/sub/other.py").unlink()
    git("add", "-A")
    git("commit", "-qm", "second")
    git("tag", "second")
    return root


def test_a_commit_becomes_the_overlay(site: Path, checkout: Path, tmp_path: Path) -> None:
    patches = commit_changes(site / "toy", checkout, "second")
    # compiled and generated (ignored) files stay as they are installed
    assert patches.files == {"core.py": b"VALUE = 2\n", "added.py": b"", "sub/other.py": None}
    overlay = build_overlay(site / "toy", tmp_path / "overlay", patches)
    assert run(overlay, site, "import toy.core, toy.sub.deep, toy.added, toy._version; print(toy.sub.deep.DEEP)") == "3\n"
    assert commit_changes(site / "toy", checkout, "first").files == {}


def test_commits_that_are_not_there(site: Path, checkout: Path) -> None:
    assert "has no commit 'third'" in why(commit_changes, site / "toy", checkout, "third")
    assert "has no commit '--help'" in why(commit_changes, site / "toy", checkout, "--help")
    assert "git rev-parse in" in why(commit_changes, site / "toy", checkout.parent / "nowhere", "first")
    (site / "toy").rename(site / "boy")
    assert "has no folder 'boy'" in why(commit_changes, site / "boy", checkout, "first")


def test_reading_an_arm(site: Path, checkout: Path, tmp_path: Path) -> None:
    class Installed(type(Toy.launcher)):  # type: ignore[misc]
        def package_folder(self, settings: Settings) -> str | None:
            return str(site / "toy")

    class Python(Toy):
        launcher = Installed()

    settings = Settings(model="m", served_name="m")
    patch = tmp_path / "p.patch"
    patch.write_bytes(PATCH)
    assert read_patches(Arm(name="B", engine="toy"), Python(), settings) is None
    found = read_patches(Arm(name="B", engine="toy", patch=str(patch)), Python(), settings)
    assert isinstance(found, Patches)
    assert found.files == {"core.py": b"VALUE = 2\n"}
    found = read_patches(Arm(name="B", engine="toy", source=str(checkout), commit="second"), Python(), settings)
    assert isinstance(found, Patches)
    assert len(found.files) == 3
    assert "no Python package" in why(read_patches, Arm(name="B", engine="toy", patch=str(patch)), Toy(), settings)


def test_module_names() -> None:
    assert module_name("toy", "__init__.py") == "toy"
    assert module_name("toy", "sub/__init__.py") == "toy.sub"
    assert module_name("toy", "sub/deep.py") == "toy.sub.deep"
    assert module_name("toy", "data.json") is None


def test_a_folder_that_cannot_stand_on_a_path(site: Path, tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="colon"):
        build_overlay(site / "toy", tmp_path / "a:b", None)


def test_an_odd_name_in_the_installation_and_a_hook_of_git(
    site: Path, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.fsdecode(b"odd-\xff.txt")
    (site / "toy" / odd).write_text("x")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit_changes(site / "toy", checkout, "first").files == {odd: None}


@pytest.mark.parametrize("name", [b"circle.patch", b"null\0.patch", b"long" * 80 + b".patch"])
def test_names_of_a_series_that_are_none(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "circle.patch").symlink_to("circle.patch")
    (tmp_path / "series").write_bytes(name + b"\n")
    assert "is no file name" in why(series, tmp_path)


def test_no_overlay_is_built_through_a_link(site: Path, tmp_path: Path) -> None:
    """A run that is resumed may come from a stranger."""
    run_folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_folder.mkdir()
    elsewhere.mkdir()
    (run_folder / "overlay").symlink_to(elsewhere)
    adapter = SimpleNamespace(launcher=SimpleNamespace(package_folder=lambda settings: str(site / "toy")))
    preparer = ArmPreparer(None, SimpleNamespace(kind="gate"), run_folder)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="symbolic link"):
        preparer._overlay("a", adapter, Settings(model="m", served_name="m"), run_folder)  # type: ignore[arg-type]
    assert not list(elsewhere.iterdir())
