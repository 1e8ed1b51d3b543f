"""Random kills against runs on the embedded engine: see ../chaos.sh."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from e2e_cli import SIGNALS, Child, Cli, cells, manifest, only, text, wait_for, work

from evenhand.drive.spill import exchanges, offsets, read_head
from evenhand.records import RequestRow
from evenhand.store import read_rows

GONE_S = 10.0
SIDE_BY_SIDE = 2
VICTIMS = {
    "harness INT": 3,
    "harness INT twice": 2,
    "group INT": 3,
    "harness TERM": 2,
    "group HUP": 2,
    "harness KILL": 6,
    "harness and guardian KILL": 2,
    "guardian KILL": 2,
    "keeper KILL": 1,
    "engine KILL": 1,
    "sampler KILL": 1,
}

Key = tuple[int, str, int, int]


def on_disk(run: Path) -> set[Key]:
    """Requests that a file holds whole: spilled, or as rows."""
    found: set[Key] = set()
    for spill in run.glob("[0-9][0-9][0-9]-*/rung-*.spill"):
        with contextlib.suppress(FileNotFoundError):  # decoded meanwhile: then it is a row below
            head, marks = read_head(spill), offsets(spill)
            if head is not None and not head.cell.startswith("warmup"):
                found |= {(head.leg, head.cell, head.repeat, e.index) for e in exchanges(spill, marks[1], marks[-1])}
    return found | rows_of(run)


def rows_of(run: Path) -> set[Key]:
    """Requests that are rows."""
    files = run.glob("[0-9][0-9][0-9]-*/requests.jsonl")
    return {(r.leg, r.cell, r.repeat, r.index) for file in files for r in read_rows(file, RequestRow)}


class Trial:
    """One run, its kills, and what became of it."""

    def __init__(self, number: int, seed: int, folder: Path, typical_s: float, expected: list[tuple[Any, ...]]) -> None:
        self.dice = random.Random(f"{seed}/{number}")
        self.number, self.folder, self.typical_s, self.expected = number, folder, typical_s, expected
        folder.mkdir()
        self.cli = Cli(folder)
        self.problems: list[str] = []
        self.lost = self.survivors = self.kills = 0
        self.said: list[str] = []

    def go(self) -> Trial:
        """Kill, judge, resume, until the run is finished."""
        try:
            self._go()
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self.cli.close()
        return self

    def _go(self) -> None:
        stubborn = {"grandchild": True, "ignore_sigterm": self.dice.random() < 0.3}
        scenario = self.cli.scenario(content(stubborn))
        child = self.cli.start("run", scenario, "--out", "out")
        while True:
            self._kill(child)
            if not (self.folder / "out").exists() or not any((self.folder / "out").glob("e2e-*")):
                self.said.append("before the run folder")
                return
            run = only(self.folder / "out", "e2e-*")
            if manifest(run)["status"] == "finished":
                self._finished(run)
                return
            again = self.kills < 3 and self.dice.random() < 0.25
            child = self.cli.start("run", scenario, "--resume", run)
            if again:
                continue
            ended = child.end()
            if not ended.fine or "Traceback" in ended.all:
                self.problems.append(f"not resumed: {ended}")
            self._finished(run)
            return

    def _kill(self, child: Child) -> None:
        """One kill, and everything that must hold after it."""
        self.kills += 1
        victim = self.dice.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        moment = self.dice.uniform(0.0, self.typical_s)
        time.sleep(moment)
        child.look()
        before = self._snapshot()
        hit = self._strike(child, victim)
        self.said.append(f"{victim}{'' if hit else ' (nobody there)'} at {moment:.2f} s")
        ended = child.end()
        after = self._snapshot() if "KILL" in victim and "harness" in victim else before
        try:
            wait_for(lambda: not self.cli.left(), "the end of all", GONE_S)
        except AssertionError:
            left = self.cli.left()
            self.survivors += len(left)
            self.problems.append(f"survivors: {left}")
        if "Traceback" in ended.all:
            self.problems.append(f"a traceback: {ended}")
        number = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "HUP": signal.SIGHUP}.get(victim.split()[1])
        if number is not None and ended.code not in (SIGNALS[number], 0):  # 0: it had just ended
            self.problems.append(f"exit code {ended.code} after {victim}: {ended}")
        self._judge(before | after)

    def _snapshot(self) -> set[Key]:
        runs = list((self.folder / "out").glob("e2e-*")) if (self.folder / "out").exists() else []
        return on_disk(runs[0]) if runs else set()

    def _strike(self, child: Child, victim: str) -> bool:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if victim in ("guardian KILL", "keeper KILL", "engine KILL", "sampler KILL", "harness and guardian KILL"):
                found = self._below(child)
                if victim.startswith("harness"):
                    child.signal(signal.SIGKILL)
                    for one in found["guardian"][:1]:
                        one.kill()
                    return True
                meant = found[victim.split()[0]]
                for one in meant[:1]:
                    one.kill()
                return bool(meant)
            who, name, *twice = victim.split()
            number = signal.Signals[f"SIG{name}"]
            child.signal(number, group=who == "group")
            if twice:
                time.sleep(self.dice.uniform(0.0, 0.3))
                child.signal(number)
            return True
        return False

    def _below(self, child: Child) -> dict[str, list[psutil.Process]]:
        """Who is who below the harness. The guardian is the harness's child, keepers are the guardian's."""
        found: dict[str, list[psutil.Process]] = {"guardian": [], "keeper": [], "engine": [], "sampler": []}
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(child.process.pid).children(recursive=True):
                line = " ".join(process.cmdline())
                if "evenhand.boot.warden" in line:
                    found["guardian" if process.ppid() == child.process.pid else "keeper"].append(process)
                elif "evenhand.engines.reference" in line:
                    found["engine"].append(process)
                elif "evenhand.watch.child" in line:
                    found["sampler"].append(process)
        return found

    def _judge(self, flushed: set[Key]) -> None:
        runs = list((self.folder / "out").glob("e2e-*")) if (self.folder / "out").exists() else []
        if not runs:
            return
        judged = self.cli.run("judge", runs[0])
        if judged.code not in (0, 2) or "Traceback" in judged.all or "evidence changed" in judged.out:
            self.problems.append(f"not judged: {judged}")
        gone = flushed - rows_of(runs[0])
        if gone:
            self.lost += len(gone)
            self.problems.append(f"rows lost: {sorted(gone)[:5]} ({len(gone)})")

    def _finished(self, run: Path) -> None:
        """The finished run equals an uninterrupted one; where the engine or its guardian was killed, its death is on record."""
        if manifest(run)["status"] != "finished":
            self.problems.append(f"not resumed: status {manifest(run)['status']}")
            return
        outcomes = Counter(row["outcome"] for row in cells(run).values())
        unharmed = [name for name, row in cells(run).items() if row["outcome"] == "ok"]
        done = [one for one in work(run) if f"{one[1]} {one[2]}" in unharmed]
        if done != [one for one in self.expected if f"{one[1]} {one[2]}" in unharmed]:
            self.problems.append(f"the finished run differs from an uninterrupted one ({outcomes})")
        harmed = any(word in said for said in self.said for word in ("guardian", "keeper", "engine"))
        if len(cells(run)) != 2 or (set(outcomes) != {"ok"} and not harmed):
            self.problems.append(f"outcomes {dict(outcomes)} in {cells(run)}")


def content(faults: dict[str, bool]) -> str:
    """The scenario of every trial."""
    return text(faults=faults, concurrency=(1, 4), requests=8, output=4, base_s=0.03)


def main() -> int:
    """Run the trials; 1 unless everything is as promised."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
    begin = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="evenhand-chaos-"))
    (home / "whole").mkdir()
    cli = Cli(home / "whole")
    start = time.monotonic()
    ended = cli.run("run", cli.scenario(content({})), "--out", "out")
    typical_s = time.monotonic() - start
    if not ended.fine:
        print(ended)
        return 1
    expected = work(only(home / "whole" / "out"))
    print(f"chaos: {count} runs, seed {seed}, an uninterrupted run takes {typical_s:.1f} s", flush=True)
    trials: list[Trial] = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for trial in pool.map(lambda n: Trial(n, seed, home / f"{n:03d}", typical_s, expected).go(), range(count)):
            trials.append(trial)
            state = "; ".join(trial.problems) or "ok"
            print(f"{trial.number:3d} {', '.join(trial.said)}: {state}", flush=True)
            if not trial.problems:
                shutil.rmtree(trial.folder, ignore_errors=True)
    unjudged = sum(p.startswith("not judged") for t in trials for p in t.problems)
    unresumed = sum(p.startswith("not resumed") for t in trials for p in t.problems)
    bad = [t for t in trials if t.problems]
    print(
        f"\n{sum(t.kills for t in trials)} kills in {count} runs, {time.monotonic() - begin:.0f} s, seed {seed}\n"
        f"processes that survived by more than {GONE_S:g} s: {sum(t.survivors for t in trials)}\n"
        f"rows lost after flush: {sum(t.lost for t in trials)}\n"
        f"runs that could not be judged: {unjudged}\n"
        f"runs that could not be resumed: {unresumed}\n"
        f"runs with any other problem: {len(bad)}"
    )
    if bad:
        print(f"kept for a look: {home}")
        return 1
    shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
