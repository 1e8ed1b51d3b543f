"""Fetch vLLM's own sources for `make test-probe`: wheels of two versions, unpacked (Python files only) into the cache.

    python tests/probe/fetch_wheels.py [VERSION ...]

A wheel is 300 MB and is deleted once unpacked (40 to 60 MB). A second run finds the folders and does nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSIONS = ("0.26.0", "0.33.0")
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_31_x86_64",
    "manylinux_2_34_x86_64",
    "manylinux_2_35_x86_64",
    "manylinux1_x86_64",
)
TRIES = 4


def folder(version: str) -> Path:
    """Where the sources of a version lie."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "evenhand" / "vllm-src" / version


def download(version: str, into: Path) -> Path:
    """The wheel of a version; tried several times. Raises SystemExit with pip's last words."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp", "--retries", "10", "--timeout", "60", "-d", str(into)]
    command += [word for name in PLATFORMS for word in ("--platform", name)]
    said = ""
    for _ in range(TRIES):
        done = subprocess.run([*command, f"vllm=={version}"], capture_output=True, text=True, timeout=1800, check=False)
        found = sorted(into.glob("vllm-*.whl"))
        if done.returncode == 0 and found:
            return found[0]
        said = done.stderr.strip()[-400:]
    raise SystemExit(f"vllm {version} could not be downloaded after {TRIES} tries: {said}")


def unpack(wheel: Path, into: Path) -> None:
    """Python files and metadata of a wheel, moved into place when complete."""
    with tempfile.TemporaryDirectory(dir=into.parent) as work:
        target = Path(work) / "site"
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith((".py", "/METADATA", "/entry_points.txt"))]
            archive.extractall(target, names)
        (target / "complete").touch()
        shutil.rmtree(into, ignore_errors=True)
        target.rename(into)


def main() -> None:
    """Fetch what is not there yet."""
    for version in sys.argv[1:] or VERSIONS:
        place = folder(version)
        if (place / "complete").exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        print(f"fetching vllm {version} (300 MB, once)", flush=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as work:
            unpack(download(version, Path(work)), place)


if __name__ == "__main__":
    main()
