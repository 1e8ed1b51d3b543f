"""A vLLM plug-in that logs, step by step, the cache blocks an engine really holds. It reads; it changes nothing.

Put this file's folder on PYTHONPATH and name a file in EVENHAND_PROBE_LOG; vLLM finds the entry point (`vllm.general_plugins`)
by the `.dist-info` folder beside it. Nothing is installed. vLLM loads plug-ins in all its processes; only the one that makes a
scheduler (EngineCore) opens the file. Standard library only. Written for vLLM 0.26 to 0.33.

Rows (JSON lines; `t_ns` is the monotonic clock, which all processes of a host share):

    {"probe": "on", "version": vLLM's, "missing": [...], "pid", "blocks": usable, "groups": [{"kind", "block_tokens"}, ...]}
    {"t_ns", "step", "used", "free", "running", "waiting", "preemptions", "evictions", "attention", "state"}
    {"t_ns", "request", "computed", "attention", "state": [per state group], "kept": [per state group]}
    {"probe": "cost", "steps", "own_ns", "step_ns"}       own time in the steps so far and their length, now and then
    {"probe": "dropped", "rows": n}                       rows lost: the writer could not keep up, or the disk was full
    {"t_ns", "probe": "off", "version": ..., "missing": [...]}    what is not as expected; the engine runs on without the probe

Where the figures are taken:
- `used` is the step's true peak: blocks outside the free queue, at the least free after any single allocation or prefix hit of
  the step (a later request of the same step may free some), and before the step's finished requests are freed. used + free =
  usable blocks (all but the null block), so used / (used + free) compares with the engine's gauge, read after those frees.
- A request's row is written when a count of it changed, at the end of the step's scheduling: `attention` and `state` count its
  blocks after allocation; `kept` counts the state blocks left when the step had retired some and not yet allocated one more.
- `computed` includes the tokens scheduled in this step. A block that requests share through the prefix cache is counted for
  each of them in `attention` and `state` of a step row, once in `used`.
- `preemptions` and `evictions` (cached blocks given up for reuse) are totals since the start.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

LOG_VARIABLE = "EVENHAND_PROBE_LOG"
TARGET = "vllm.v1.core.sched.scheduler"
QUEUE_ROWS = 65536
"""Rows that may wait for the writer; more are dropped and counted."""
FLUSH_S = 0.05
COST_S = 2.0
"""How often the probe says what it has cost: an engine that is killed says no last word."""
FILE_LIMIT_BYTES = 512 << 20
SETTLE_STEPS = 4
"""Steps for which a request with state blocks is counted again after it changed: states retire without a new allocation."""

STEP = ("t_ns", "step", "used", "free", "running", "waiting", "preemptions", "evictions", "attention", "state")
REQUEST = ("t_ns", "request", "computed", "attention", "state", "kept")


class Log:
    """Rows go into a bounded queue; a thread writes them."""

    def __init__(self, path: str, more: dict[str, Any] | None = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.every: Callable[[], None] | None = None
        """Called by the writer every COST_S."""
        self._rows: deque[tuple[tuple[str, ...], tuple[Any, ...]] | dict[str, Any]] = deque()
        self._more = more or {}
        self._written = self._dropped = self._told = 0
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="evenhand-probe", daemon=True)
        self._thread.start()

    def put(self, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        """From the engine's thread: never waits."""
        if len(self._rows) < QUEUE_ROWS:
            self._rows.append((names, values))
        else:
            self._dropped += 1

    def say(self, **row: Any) -> None:
        """A rare row that must not be dropped."""
        self._rows.append(row)

    def _run(self) -> None:
        next_s = time.monotonic() + COST_S
        while not self._end.wait(FLUSH_S):
            if self.every is not None and time.monotonic() >= next_s:
                next_s += COST_S
                self.every()
            with contextlib.suppress(OSError):
                self.flush()

    def flush(self) -> None:
        """Write what waits. OSError (a full disk) is the caller's; the rows that it took count as dropped."""
        with self._lock:
            lines = []
            while self._rows:
                row = self._rows.popleft()
                fields = row if isinstance(row, dict) else dict(zip(*row, strict=False))
                lines.append(json.dumps({**fields, **self._more}, separators=(",", ":")))
            if self._dropped > self._told:
                self._told = self._dropped
                lines.append(json.dumps({"probe": "dropped", "rows": self._told, **self._more}))
            data = "".join(line + "\n" for line in lines).encode()
            if self._written + len(data) > FILE_LIMIT_BYTES:
                self._dropped += len(lines)
                return
            self._written += len(data)
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:
                self._dropped += len(lines)
                raise

    def close(self) -> None:
        """Write what is left. Safe to call again."""
        self._end.set()
        with contextlib.suppress(OSError):
            self.flush()


class Missing(Exception):
    """Internals that are not as expected; the argument lists them."""


def _kind(spec: Any) -> str:
    """ "state" for recurrent (Mamba, GDN) groups, else "attention"."""
    for inner in [spec, *getattr(spec, "kv_cache_specs", {}).values()]:
        if any(base.__name__ == "MambaSpec" for base in type(inner).__mro__):
            return "state"
    return "attention"


class Probe:
    """Attached to one scheduler by attributes of its instances, so that taking them off restores everything."""

    def __init__(self, scheduler: Any, log: Log, version: str | None) -> None:
        self._scheduler, self._log, self._version = scheduler, log, version
        self._undo: list[Callable[[], None]] = []
        self._lost = self._find()
        self._low = self._usable
        self._step = self._preemptions = self._evictions = 0
        self._own_ns = self._span_ns = self._last_ns = 0
        self._costed = 0
        self._held: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._attention = self._state = 0
        self._watched: dict[str, int] = {}
        self._kept: dict[str, tuple[int, ...]] = {}
        self._told: dict[str, tuple[int, ...]] = {}
        self._install()
        log.say(
            probe="on",
            version=version,
            missing=self._lost,
            pid=os.getpid(),
            blocks=self._usable,
            groups=[{"kind": kind, "block_tokens": getattr(manager, "block_size", None)} for kind, manager in self._groups],
        )

    def _find(self) -> list[str]:
        """Look up every internal that is needed (Missing lists those that are not there); returns what can be done without."""
        missing: list[str] = []

        def need(owner: Any, name: str, where: str, kind: type | tuple[type, ...] = object) -> Any:
            value = getattr(owner, name, None)
            if value is None or not isinstance(value, kind):
                missing.append(f"{where}.{name}")
            return value

        scheduler = self._scheduler
        manager = need(scheduler, "kv_cache_manager", "Scheduler")
        need(scheduler, "running", "Scheduler", list)
        need(scheduler, "requests", "Scheduler", dict)
        for name in ("schedule", "get_request_counts"):
            if not callable(need(scheduler, name, "Scheduler")):
                missing.append(f"Scheduler.{name}()")
        pool = need(manager, "block_pool", "KVCacheManager")
        queue = need(pool, "free_block_queue", "BlockPool")
        free = need(queue, "num_free_blocks", "FreeKVCacheBlockQueue", int)
        blocks = need(pool, "num_gpu_blocks", "BlockPool", int)
        self._null = need(pool, "null_block", "BlockPool")
        need(pool, "get_new_blocks", "BlockPool")
        need(pool, "touch", "BlockPool")
        self._coordinator = need(manager, "coordinator", "KVCacheManager")
        managers: Sequence[Any] = need(self._coordinator, "single_type_managers", "KVCacheCoordinator", (list, tuple)) or ()
        lost: list[str] = []
        self._groups: list[tuple[str, Any]] = []
        for index, each in enumerate(managers):
            need(each, "req_to_blocks", type(each).__name__, dict)
            spec = need(each, "kv_cache_spec", type(each).__name__)
            if getattr(each, "block_pool", pool) is not pool:
                lost.append(f"group {index} ({type(each).__name__}) has a pool of its own")
            else:
                self._groups.append((_kind(spec), each))
        if not missing and free > blocks - 1:
            missing.append("BlockPool with one null block")
        if missing:
            raise Missing(missing)
        self._pool, self._usable = pool, blocks - 1
        # full attention never has gaps: its length is its count
        self._plain = [m for k, m in self._groups if k == "attention" and type(m).__name__ == "FullAttentionManager"]
        self._gapped = [m for k, m in self._groups if k == "attention" and m not in self._plain]
        self._states = [m for k, m in self._groups if k == "state"]
        for owner, name in ((scheduler, "_preempt_request"), (pool, "_maybe_evict_cached_block")):
            if not callable(getattr(owner, name, None)):
                lost.append(f"{type(owner).__name__}.{name}")
        if self._states and not callable(getattr(self._coordinator, "remove_skipped_blocks", None)):
            lost.append("KVCacheCoordinator.remove_skipped_blocks")
        return lost

    # --- hooks: each runs the original first (or last) and hands its result on untouched ------------------------------

    def _wrap(self, owner: Any, name: str, after: Callable[[Any, tuple[Any, ...]], None]) -> None:
        original = getattr(owner, name, None)
        if not callable(original):
            return

        @functools.wraps(original)
        def hook(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                after(result, args)
            except Exception as error:
                self.off(f"{name}: {type(error).__name__}: {error}")
            return result

        setattr(owner, name, hook)
        self._undo.append(lambda: vars(owner).pop(name, None))

    def _install(self) -> None:
        pool = self._pool

        def lower(result: Any, args: tuple[Any, ...]) -> None:
            free = pool.free_block_queue.num_free_blocks
            if free < self._low:
                self._low = free

        def evicted(result: Any, args: tuple[Any, ...]) -> None:
            if result:
                self._evictions += 1

        def preempted(result: Any, args: tuple[Any, ...]) -> None:
            self._preemptions += 1

        def retired(result: Any, args: tuple[Any, ...]) -> None:
            if args and args[0] in self._watched:
                self._kept[args[0]] = self._count(self._states, args[0])

        self._wrap(pool, "get_new_blocks", lower)
        self._wrap(pool, "touch", lower)
        self._wrap(pool, "_maybe_evict_cached_block", evicted)
        self._wrap(self._scheduler, "_preempt_request", preempted)
        if self._states:
            self._wrap(self._coordinator, "remove_skipped_blocks", retired)
        self._wrap(self._scheduler, "schedule", self._scheduled)

    def off(self, *missing: str) -> None:
        """Take every hook away, say why, and let the engine run on."""
        undo, self._undo = self._undo, []
        for each in undo:
            each()
        if undo:
            self._log.say(t_ns=time.monotonic_ns(), probe="off", version=self._version, missing=list(missing))

    def cost(self) -> None:
        """Say what it has cost, unless it said so for this step already."""
        if self._undo and self._step > self._costed:
            self._costed = self._step
            self._log.say(probe="cost", steps=self._step, own_ns=self._own_ns, step_ns=self._span_ns)

    # --- the end of a step's scheduling -------------------------------------------------------------------------------

    def _count(self, managers: Sequence[Any], request: str) -> tuple[int, ...]:
        null = self._null
        return tuple([sum([block is not null for block in manager.req_to_blocks.get(request, ())]) for manager in managers])

    def _scheduled(self, output: Any, args: tuple[Any, ...]) -> None:
        t_ns = time.monotonic_ns()
        scheduler = self._scheduler
        self._step += 1
        self._requests(t_ns, output)
        free = min(self._low, self._pool.free_block_queue.num_free_blocks)
        self._low = self._usable
        running, waiting = scheduler.get_request_counts()
        used = self._usable - free
        counts = (self._preemptions, self._evictions, self._attention, self._state)
        self._log.put(STEP, (t_ns, self._step, used, free, running, waiting, *counts))
        end_ns = time.monotonic_ns()
        self._own_ns += end_ns - t_ns
        # a pause between requests is no step
        if self._last_ns and running and t_ns - self._last_ns < 10_000_000_000:
            self._span_ns += t_ns - self._last_ns
        self._last_ns = t_ns if running else 0

    def _requests(self, t_ns: int, output: Any) -> None:
        """Rows of the requests whose blocks may have changed, and the totals over all of them."""
        watched, settle = self._watched, SETTLE_STEPS if self._states else 1
        for new in output.scheduled_new_reqs:
            watched[new.req_id] = settle
        cached = output.scheduled_cached_reqs
        # most running requests took no block in this step: a comprehension passes 256 of them in a few microseconds
        for request in [name for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=False) if blocks is not None]:
            watched[request] = settle
        for request in [*output.finished_req_ids, *(getattr(output, "preempted_req_ids", None) or ())]:
            watched.pop(request, None)
            self._told.pop(request, None)
            self._hold(request, None)
        requests = self._scheduler.requests
        for request, left in list(watched.items()):
            known = requests.get(request)
            plain = sum([len(manager.req_to_blocks.get(request, ())) for manager in self._plain])
            attention = plain + sum(self._count(self._gapped, request))
            held = (attention, self._count(self._states, request))
            kept = self._kept.get(request)
            # the first step after a prefill allocates no state: only what it kept tells how many there were
            if known is not None and (self._held.get(request) != held or (kept and self._told.get(request) != kept)):
                self._log.put(REQUEST, (t_ns, request, known.num_computed_tokens, *held, kept))
                self._hold(request, held)
                if kept:
                    self._told[request] = kept
            if left > 1 and known is not None:
                watched[request] = left - 1
            else:
                del watched[request]
        self._kept.clear()

    def _hold(self, request: str, held: tuple[int, tuple[int, ...]] | None) -> None:
        old = self._held.pop(request, None)
        if old is not None:
            self._attention -= old[0]
            self._state -= sum(old[1])
        if held is not None:
            self._held[request] = held
            self._attention += held[0]
            self._state += sum(held[1])


# --- placing it -------------------------------------------------------------------------------------------------------


def _version() -> str | None:
    version = getattr(sys.modules.get("vllm"), "__version__", None)
    return version if isinstance(version, str) else None


def attach(scheduler: Any, path: str) -> Probe | None:
    """Watch this scheduler; None (and a row that says why) where its internals are not as expected. Never raises."""
    try:
        parallel = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
        several = (getattr(parallel, "data_parallel_size", 1) or 1) > 1
        log = Log(path, {"engine": getattr(parallel, "data_parallel_rank", None)} if several else None)
    except Exception as error:
        print(f"evenhand probe: off: {error}", file=sys.stderr)
        return None
    probe = None
    try:
        probe = Probe(scheduler, log, _version())
        log.every = probe.cost
    except Missing as error:
        log.say(probe="off", version=_version(), missing=error.args[0])
    except Exception as error:
        log.say(probe="off", version=_version(), missing=[f"{type(error).__name__}: {error}"])

    def close() -> None:
        if probe is not None:
            probe.cost()
        log.close()

    atexit.register(close)
    with contextlib.suppress(ImportError):
        # a multiprocessing child leaves by os._exit: only its own finalizers run
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=100)
    return probe


def _hook(module: ModuleType) -> None:
    """From now on every scheduler that this process makes is watched."""
    cls = getattr(module, "Scheduler", None)
    if cls is None:
        log = Log(os.environ[LOG_VARIABLE])
        log.say(probe="off", version=_version(), missing=[f"{TARGET}.Scheduler"])
        log.close()
        return
    original = cls.__init__
    if hasattr(original, "evenhand_probe"):
        return

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if path := os.environ.get(LOG_VARIABLE):
            attach(self, path)

    __init__.evenhand_probe = True  # type: ignore[attr-defined]
    cls.__init__ = __init__


class _OnImport:
    """Finder that hooks the scheduler's module when vLLM itself imports it: importing it early is slow, and circular."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Spec of TARGET with a loader that hooks it; None for every other module."""
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            _hook(module)

        loader.exec_module = exec_module
        return spec


def register() -> None:
    """Entry point of `vllm.general_plugins`: called once in every process of the engine. Never raises."""
    if not os.environ.get(LOG_VARIABLE) or any(isinstance(finder, _OnImport) for finder in sys.meta_path):
        return
    try:
        if TARGET in sys.modules:
            _hook(sys.modules[TARGET])
        else:
            sys.meta_path.insert(0, _OnImport())
    except Exception as error:
        print(f"evenhand probe: off: {error}", file=sys.stderr)
