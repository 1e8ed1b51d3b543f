"""Whoever is killed, nobody is left behind, and nobody else is touched. Real processes; waiting is for events, with a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evenhand.boot import guardian as module
from evenhand.boot import proc
from evenhand.boot.guardian import MARK, Guardian, SpawnError

LIMIT_S = 10.0
"""What is promised."""

# An engine with a stubborn worker (ignores SIGTERM), one in a session of its own whose parent has exited, and one that is both.
ENGINE = """
import os, signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('w', flush=True); time.sleep(1000)"
plain = "import time; print('w', flush=True); time.sleep(1000)"
orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {plain!r}], start_new_session=True)"
both = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", stubborn])
subprocess.run([sys.executable, "-c", orphan])
subprocess.run([sys.executable, "-c", both])
print("up", flush=True)
time.sleep(1000)
"""

HARNESS = f"""
import sys, time
from evenhand.boot.guardian import Guardian
guardian = Guardian(grace_s=0.5)
child = guardian.spawn([sys.executable, "-c", {ENGINE!r}], {{"TEST_MARK": sys.argv[1]}}, sys.argv[2], "/")
while open(sys.argv[2]).read().count("w") < 3 or "up" not in open(sys.argv[2]).read():
    time.sleep(0.01)
print(guardian.pid, child.pid, flush=True)
{{then}}
"""


def until(what: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    end = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Harness:
    """A harness in a process of its own, with an engine up."""

    def __init__(self, folder: Path, then: str) -> None:
        self.mark = f"TEST_MARK={folder.name}-{os.getpid()}"
        code = HARNESS.replace("{then}", then)
        argv = [sys.executable, "-c", code, self.mark.partition("=")[2], str(folder / "engine.log")]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.warden, self.engine = (int(word) for word in self.process.stdout.readline().split())
        keeper = proc.read(self.engine)
        assert keeper is not None
        self.keeper = keeper.ppid

    def left(self) -> list[int]:
        return [one.pid for one in proc.marked(self.mark.encode())]

    def end(self) -> None:
        for one in proc.marked(self.mark.encode()):
            proc.send(one.pid, one.start, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(then: str = "time.sleep(1000)") -> Harness:
        made.append(Harness(tmp_path, then))
        assert len(made[-1].left()) == 4
        return made[-1]

    yield make
    for one in made:
        one.end()


def gone(pid: int) -> bool:
    found = proc.read(pid)
    return found is None or found.state in "ZX"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_b53_whatever_ends_the_harness_nobody_survives(harness: Callable[..., Harness], number: int) -> None:
    """B53: also kill -9, also children that called setsid, also those that ignore SIGTERM."""
    one = harness()
    one.process.send_signal(number)
    assert until(lambda: not one.left())
    assert until(lambda: gone(one.warden) and gone(one.keeper))


@pytest.mark.parametrize("then", ["", "raise RuntimeError", "import os; os._exit(1)", "import os; os.abort()"])
def test_every_other_end_of_the_harness(harness: Callable[..., Harness], then: str) -> None:
    one = harness(then)
    assert until(lambda: not one.left())


def test_a_fork_of_the_harness_that_lives_on_changes_nothing(harness: Callable[..., Harness]) -> None:
    """A forked child holds the pipe open: the end of the harness itself must count."""
    one = harness("import os\nif os.fork() == 0: time.sleep(1000)\ntime.sleep(1000)")
    fork = [pid for pid, found in proc.scan().items() if found.ppid == one.process.pid and pid != one.warden]
    one.process.kill()
    assert until(lambda: not one.left())
    for pid in fork:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("which", ["warden", "keeper", "both"])
def test_a_killed_guardian_leaves_nobody(harness: Callable[..., Harness], which: str) -> None:
    """The harness lives and looks: each of the two processes ends what the other one leaves, the harness what both leave."""
    one = harness("while True:\n guardian.poll(child)\n time.sleep(0.05)")
    victims = {"warden": [one.warden], "keeper": [one.keeper], "both": [one.warden, one.keeper]}[which]
    for pid in victims:
        os.kill(pid, signal.SIGSTOP)  # neither may react to the other's end
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: gone(one.engine), 1.0)  # at once: PR_SET_PDEATHSIG, or the end of its keeper's patience
    assert until(lambda: not one.left())


@pytest.mark.parametrize("which", ["warden", "keeper"])
def test_harness_and_one_guardian_killed_together(harness: Callable[..., Harness], which: str) -> None:
    one = harness()
    os.kill(one.warden if which == "warden" else one.keeper, signal.SIGKILL)
    one.process.kill()
    assert until(lambda: not one.left())


def test_signals_to_the_guardian_end_everything(harness: Callable[..., Harness]) -> None:
    one = harness()
    os.kill(one.warden, signal.SIGTERM)
    assert until(lambda: not one.left())


def test_nobody_else_is_touched(harness: Callable[..., Harness], tmp_path: Path) -> None:
    """A process of ours with the same program, and one of another harness, live on."""
    with Guardian() as other:
        mine = other.spawn([sys.executable, "-c", "import time; time.sleep(1000)"], {}, tmp_path / "other.log", "/")
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as bystander:
            one = harness()
            one.process.kill()
            assert until(lambda: not one.left())
            assert bystander.poll() is None
            assert other.poll(mine) is None
            bystander.kill()


# --- within a living harness ------------------------------------------------------------------------------------------------


def sleeper(guardian: Guardian, tmp_path: Path, code: str = "", log: str = "log") -> module.Child:
    text = f"import os, signal, sys, time\n{code}\nprint('up', flush=True)\ntime.sleep(1000)"
    child = guardian.spawn([sys.executable, "-c", text], {"A": "1"}, tmp_path / log, tmp_path)
    assert until(lambda: "up" in (tmp_path / log).read_text())
    return child


def test_what_a_child_is_given(guardian: Guardian, tmp_path: Path) -> None:
    """Its own session, /dev/null, the log, nothing else open; default signals; exactly the environment asked for."""
    code = (
        "print(sorted(os.listdir('/proc/self/fd')), os.readlink('/proc/self/fd/0'), os.getsid(0) == os.getpid(), os.getcwd())\n"
        "print(*sorted(os.environ))\n"
        "print(*map(signal.getsignal, (signal.SIGHUP, signal.SIGQUIT)), signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('SigIgn')])"
    )
    sleeper(guardian, tmp_path, code)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == f"['0', '1', '2', '3'] /dev/null True {tmp_path}"  # 3 is the listing's own
    assert [name for name in lines[1].split() if name != "LC_CTYPE"] == ["A", MARK]
    assert lines[2] == "0 0 set()"
    # Python itself ignores SIGPIPE and SIGXFSZ; 32 and 33 are the C library's, and Python cannot touch them
    assert int(lines[3][2:-2], 16) & ~(1 << 12 | 1 << 24 | 1 << 31 | 1 << 32) == 0


def test_exit_codes(guardian: Guardian, tmp_path: Path) -> None:
    for code, want in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("", 0)):
        child = guardian.spawn([sys.executable, "-c", code], {}, tmp_path / "log", "/")
        assert until(lambda child=child: guardian.poll(child) is not None)  # type: ignore[misc]
        assert guardian.poll(child) == want
        assert guardian.stop(child, 5.0).exit_code == want
        assert guardian.tree(child) == []


def test_a_gentle_stop_asks_the_engine_first(guardian: Guardian, tmp_path: Path) -> None:
    """Its children are not signalled while it ends in its own way: their deaths would look like errors in its log."""
    code = (
        "import subprocess\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        "def end(*_):\n"
        "    time.sleep(0.3); print('worker', worker.poll(), flush=True); worker.terminate(); worker.wait(); sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, end)"
    )
    child = sleeper(guardian, tmp_path, code)
    assert guardian.stop(child, 10.0) == module.Stopped(exit_code=7, survivors=[])
    assert "worker None" in (tmp_path / "log").read_text()


def test_an_engine_that_ignores_sigterm(guardian: Guardian, tmp_path: Path) -> None:
    child = sleeper(guardian, tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    stopped = guardian.stop(child, 0.3)
    assert (stopped.exit_code, stopped.survivors) == (-9, [])
    assert guardian.stop(child, 0.3) == stopped


def test_two_engines_are_stopped_apart(guardian: Guardian, tmp_path: Path) -> None:
    fork = "os.spawnlp(os.P_NOWAIT, 'setsid', 'setsid', 'sleep', '1000')"
    one, two = (sleeper(guardian, tmp_path, fork, log) for log in ("one", "two"))
    assert until(lambda: len(guardian.tree(one)) == len(guardian.tree(two)) == 2)
    assert not set(guardian.tree(one)) & set(guardian.tree(two))
    assert guardian.stop(one, 5.0).survivors == []
    assert guardian.poll(two) is None
    assert len(guardian.tree(two)) == 2


def test_an_engine_that_signals_its_parent_and_its_group(guardian: Guardian, tmp_path: Path) -> None:
    """Some engines end themselves that way; the keeper must outlive it."""
    code = "os.kill(os.getppid(), signal.SIGQUIT); signal.signal(signal.SIGUSR1, signal.SIG_IGN); os.killpg(0, signal.SIGUSR1)"
    child = sleeper(guardian, tmp_path, code)
    assert guardian.poll(child) is None
    assert guardian.stop(child, 5.0).survivors == []


def test_what_cannot_be_started(guardian: Guardian, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/python\n")
    script.chmod(0o755)
    plain = tmp_path / "plain"
    plain.touch()
    for argv, cwd, words in (
        (["/nowhere/x"], "/", "/nowhere/x cannot be started: No such file or directory"),
        ([str(plain)], "/", f"{plain} cannot be started: Permission denied"),
        ([str(script)], "/", f"{script} cannot be started: No such file or directory for the interpreter in its first line"),
        (["true"], "/nowhere", "true cannot be started: No such file or directory: /nowhere"),
    ):
        with pytest.raises(SpawnError) as caught:
            guardian.spawn(argv, {"PATH": os.defpath}, tmp_path / "log", cwd)
        assert str(caught.value) == words
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpawnError, match="Too many levels of symbolic links"):
        guardian.spawn(["true"], {"PATH": os.defpath}, tmp_path / "link", "/")
    assert not (tmp_path / "elsewhere").exists()


def test_a_large_environment_and_an_odd_one(guardian: Guardian, tmp_path: Path) -> None:
    text = "x" * 100_000 + "\n\u00e4\udcff"
    code = "import os; print(len(os.environ['BIG']), os.environ['BIG'].encode('utf-8', 'surrogateescape')[-3:])"
    child = guardian.spawn([sys.executable, "-c", code], {"BIG": text, "LC_ALL": "C.UTF-8"}, tmp_path / "log", "/")
    assert until(lambda: guardian.poll(child) == 0)
    assert (tmp_path / "log").read_text() == "100003 b'\\xc3\\xa4\\xff'\n"


def test_after_a_killed_guardian_a_new_one_starts(guardian: Guardian, tmp_path: Path) -> None:
    child = sleeper(guardian, tmp_path)
    first = guardian.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert guardian.poll(child) == -signal.SIGKILL
    assert gone(child.pid)
    assert guardian.stop(child, 1.0) == module.Stopped(exit_code=-9, survivors=[])
    again = sleeper(guardian, tmp_path, log="again")
    assert again.guard != child.guard
    assert guardian.poll(again) is None
    assert guardian.poll(child) == -signal.SIGKILL


def test_an_answer_to_an_interrupted_request_is_skipped(
    guardian: Guardian, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come between a request and its answer."""
    child = sleeper(guardian, tmp_path)
    line = module._line

    def interrupted(pipe: object) -> bytes:
        monkeypatch.setattr(module, "_line", line)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        guardian.tree(child)
    assert guardian.poll(child) is None
    assert guardian.tree(child) == [child.pid]


def test_pids_that_were_given_again_are_safe() -> None:
    """A signal goes to the process that was meant, not to a later one with its pid."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        start = proc.start_time(process.pid)
        assert start is not None
        assert not proc.send(process.pid, start - 1, signal.SIGKILL)
        assert process.poll() is None
        assert proc.send(process.pid, start, signal.SIGKILL)
        process.wait()
        assert not proc.send(process.pid, start, signal.SIGKILL)


def test_the_wardens_imports_stay_light(guardian: Guardian, tmp_path: Path) -> None:
    """Start-up is an import list: no site, no third party, nothing of ours but two modules."""
    child = sleeper(guardian, tmp_path)
    assert guardian.pid is not None
    maps = Path(f"/proc/{guardian.pid}/maps").read_text()
    assert "site-packages" not in maps
    code = "import sys, evenhand.boot.warden; print(*sorted(m for m in sys.modules if 'evenhand' in m))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in found if not name.startswith("__editable__")] == [
        "evenhand",
        "evenhand.boot",
        "evenhand.boot.proc",
        "evenhand.boot.warden",
    ]
    assert guardian.stop(child, 5.0).survivors == []


def test_closing_twice_and_after_use(tmp_path: Path) -> None:
    guardian = Guardian()
    child = sleeper(guardian, tmp_path)
    guardian.close()
    assert gone(child.pid)
    guardian.close()
    assert guardian.poll(child) == -signal.SIGKILL
