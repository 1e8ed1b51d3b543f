"""Start, read and stop the sampler's process; what it says of itself goes into the leg's row."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from evenhand.boot.environment import secrets_of
from evenhand.quantile import quantile
from evenhand.records import SamplerReport
from evenhand.store import plain, read_rows

if TYPE_CHECKING:
    from evenhand.engines.base import Gauge

SLOW_SHARE = 0.5
"""Above this share of its time spent in scrapes the server is said to pay for being watched."""


class _Stamp(msgspec.Struct, frozen=True):
    """The part of a SampleRow that the report needs."""

    due_ns: int
    start_ns: int
    end_ns: int
    status: str
    values: dict[str, float | None] = {}


def whole_lines(data: bytes) -> list[bytes]:
    """Lines that end in a newline; one that a kill cut short is dropped."""
    return data.split(b"\n")[:-1]


class Sampler:
    """Context manager around the sampler's process of one leg.

    Writes samples.jsonl, scrapes.jsonl.gz and gpu.jsonl into `out_dir`, a row at a time. `metrics_path` None: nothing is
    scraped. `env` is the engine's environment (its CUDA_VISIBLE_DEVICES picks the devices). `roots` are pids whose
    trees are ours: any other process on a watched device is foreign. `pool_sizes` weighs usage over data-parallel engines.
    """

    def __init__(
        self,
        leg: int,
        base_url: str,
        gauges: Sequence[Gauge],
        metrics_path: str | None,
        interval_s: float,
        out_dir: str | os.PathLike[str],
        api_key: str | None = None,
        nvml: Literal["auto", "off"] = "auto",
        env: Mapping[str, str] | None = None,
        *,
        roots: Sequence[int] = (),
        pool_sizes: Mapping[str, float] | None = None,
        timeout_s: float = 5.0,
        raw_limit_bytes: int = 64 << 20,
    ) -> None:
        if interval_s <= 0:
            raise ValueError(f"watch.interval_s is {interval_s}; it must be above 0 (0.25 by default, 0.02 for a fast card)")
        self._out = Path(out_dir)
        env = os.environ if env is None else env
        self._interval_s = interval_s
        self._scrapes = metrics_path is not None
        self._config: dict[str, Any] = {
            "leg": leg,
            "url": None if metrics_path is None else base_url.rstrip("/") + "/" + metrics_path.lstrip("/"),
            "gauges": [
                {key: getattr(gauge, key) for key in ("name", "metrics", "kind", "labels", "pool", "low", "high", "scale")}
                for gauge in gauges
            ],
            "interval_s": interval_s,
            "out_dir": str(self._out.resolve()),
            "api_key": api_key,
            "timeout_s": timeout_s,
            "raw_limit_bytes": raw_limit_bytes,
            "secrets": [*secrets_of(env), *([api_key] if api_key else [])],
            "pool_sizes": dict(pool_sizes or {}),
            "gpu": nvml == "auto",
            "visible": env.get("CUDA_VISIBLE_DEVICES"),
            "device_order": env.get("CUDA_DEVICE_ORDER"),
            "gpu_interval_s": max(interval_s, 0.05),
            "roots": list(roots),
        }
        self._names = [gauge.name for gauge in gauges]
        self._child: subprocess.Popen[bytes] | None = None
        self._said: list[dict[str, Any]] = []
        self._ready = threading.Event()
        self._listener: threading.Thread | None = None
        self._report: SamplerReport | None = None
        self._earlier = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, deadline_s: float = 60.0) -> None:
        """Start the process and wait until it samples. Raises OSError when it does not within `deadline_s`.

        Rows of an earlier boot of the leg stay, and are in no report of ours. Raises StoreError when they cannot be read.
        """
        self._out.mkdir(parents=True, exist_ok=True)
        self._earlier = len(self._stamps())
        # a session of its own: Ctrl-C is for the harness, which then ends the sampler by closing its pipe
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "evenhand.watch.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(self._config).encode() + b"\n")
            self._child.stdin.flush()
        if not self._ready.wait(deadline_s):
            code = self._child.poll()
            self._end()
            raise OSError(f"the sampler did not start within {deadline_s:g} s (exit code {code})")

    def _stamps(self) -> list[_Stamp]:
        return read_rows(self._out / "samples.jsonl", _Stamp)

    def _listen(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        for line in self._child.stdout:
            event = json.loads(line)
            if event["what"] == "ready":
                self._ready.set()
            self._said.append(event)

    def _end(self) -> int:
        """Close the pipe, wait, kill if need be; exit code."""
        assert self._child is not None
        with contextlib.suppress(OSError):
            assert self._child.stdin is not None
            self._child.stdin.close()
        try:
            code = self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        if self._listener is not None:
            self._listener.join(2.0)
        assert self._child.stdout is not None
        self._child.stdout.close()
        return code

    def latest(self) -> dict[str, Any] | None:
        """The last whole row of samples.jsonl, for the progress display; None before the first."""
        try:
            with plain(self._out / "samples.jsonl") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 65536))
                lines = whole_lines(file.read())
        except FileNotFoundError:
            return None
        row: dict[str, Any] | None = msgspec.json.decode(lines[-1]) if lines else None
        return row

    def stop(self) -> SamplerReport:
        """End sampling and say how it went. Safe to call twice. Raises StoreError when the rows cannot be read back."""
        if self._report is not None:
            return self._report
        if self._child is None:
            return SamplerReport(status="off", interval_s=self._interval_s)
        died = self._child.poll()
        code = self._end()
        status = f"died ({died})" if died is not None else "ok" if code == 0 else f"failed ({code})"
        self._report = report(
            self._stamps()[self._earlier :],
            self._said,
            self._interval_s,
            self._names,
            status,
            scrapes=self._scrapes,
        )
        return self._report


def report(
    stamps: Sequence[_Stamp],
    said: Sequence[Mapping[str, Any]],
    interval_s: float,
    names: Sequence[str],
    status: str,
    *,
    scrapes: bool,
) -> SamplerReport:
    """Pure: stored stamps and the process's own words -> SamplerReport."""
    events: dict[str, Mapping[str, Any]] = {event["what"]: event for event in said}
    good = [stamp for stamp in stamps if stamp.status == "ok"]
    jitter = sorted((stamp.start_ns - stamp.due_ns) / 1e9 for stamp in stamps)
    took = sorted((stamp.end_ns - stamp.start_ns) / 1e9 for stamp in good)
    starts = [stamp.start_ns for stamp in good]
    gaps = [(after - before) / 1e9 for before, after in itertools.pairwise(starts)]
    span_s = (stamps[-1].end_ns - stamps[0].start_ns) / 1e9 if len(stamps) > 1 else None
    mean_s = sum(took) / len(took) if took else None
    effective_s = sum(gaps) / len(gaps) if gaps else None
    share = sum((stamp.end_ns - stamp.start_ns) / 1e9 for stamp in stamps) / span_s if span_s else None
    skipped = int(events.get("grid", {}).get("skipped", 0))
    warnings = [str(event["text"]) for event in said if event["what"] in ("warning", "error")]
    if status == "ok" and not scrapes:
        status = "off"
    if "final" in events:
        status = str(events["final"]["status"])
        warnings.append(f"/metrics is {status}: scraping was given up after {len(stamps)} tries")
    elif status == "ok" and stamps and not good:
        status = stamps[-1].status
        warnings.append(f"no scrape could be used: {status}")
    if mean_s is not None and mean_s > interval_s:
        warnings.append(
            f"scrape slower than interval: mean scrape time {mean_s:.3g} s at {interval_s:g} s asked, "
            f"one scrape every {effective_s or mean_s:.3g} s"
        )
    elif share is not None and share > SLOW_SHARE and good:
        warnings.append(f"a scrape was in flight {share:.0%} of the time: ask for a longer interval")
    raw = events.get("raw", {})
    if raw.get("dropped"):
        warnings.append(
            f"{raw['dropped']} raw bodies were not kept: a size limit was reached (their figures are in the samples)"
        )
    seen = {name for stamp in good for name, value in stamp.values.items() if value is not None}
    cost = events.get("cost", {})
    gpu = events.get("gpu", {})
    return SamplerReport(
        status=status,
        samples=len(good),
        failed=len(stamps) - len(good),
        skipped=skipped,
        interval_s=interval_s,
        effective_interval_s=effective_s,
        gap_max_s=max(gaps) if gaps else None,
        jitter_p50_s=quantile(jitter, 0.5),
        jitter_p99_s=quantile(jitter, 0.99),
        jitter_max_s=jitter[-1] if jitter else None,
        scrape_p50_s=quantile(took, 0.5),
        scrape_p99_s=quantile(took, 0.99),
        scrape_max_s=took[-1] if took else None,
        scrape_mean_s=mean_s,
        scrape_share=share,
        cpu_s=cost.get("cpu_s"),
        rss_bytes=cost.get("rss_bytes"),
        realtime=bool(events.get("grid", {}).get("realtime", False)),
        raw_bodies=int(raw.get("kept", 0)),
        absent=[name for name in names if name not in seen] if good else [],
        gpus=list(gpu.get("uuids", [])),
        gpu_reasons=dict(gpu.get("reasons", {})),
        warnings=warnings,
    )
