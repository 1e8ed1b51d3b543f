"""The probe against a stand-in for vLLM's scheduler: placing, hooks, bounds. The real one is in test_real_modules.py."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PLUGIN = Path(__file__).parents[2] / "engines" / "probes" / "vllm_plugin"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, imported from its folder as the engine would."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    monkeypatch.delitem(sys.modules, "evenhand_probe", raising=False)
    import evenhand_probe

    return evenhand_probe


class MambaSpec:
    """Stand-in: only the name counts."""


class FullAttentionSpec:
    """Stand-in."""


class Pool:
    """Stand-in for BlockPool: the null block is taken at the start."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks
        self.free_block_queue = SimpleNamespace(num_free_blocks=blocks - 1)
        self.null_block = object()

    def get_new_blocks(self, count: int) -> list[object]:
        self.free_block_queue.num_free_blocks -= count
        return [object() for _ in range(count)]

    def touch(self, blocks: list[object]) -> None:
        self.free_block_queue.num_free_blocks -= len(blocks)

    def free_blocks(self, blocks: list[object]) -> None:
        self.free_block_queue.num_free_blocks += len(blocks)

    def _maybe_evict_cached_block(self, block: object) -> bool:
        return True


class FullAttentionManager:
    """Stand-in for a single-type manager."""

    block_size = 16

    def __init__(self, pool: Pool, spec: object) -> None:
        self.block_pool, self.kv_cache_spec = pool, spec
        self.req_to_blocks: defaultdict[str, list[object]] = defaultdict(list)


class MambaManager(FullAttentionManager):
    """Stand-in."""


class Scheduler:
    """Stand-in: `plan` holds one function a step, which allocates as it likes and returns the output."""

    def __init__(self, states: int = 2) -> None:
        self.pool = Pool(100)
        managers = [FullAttentionManager(self.pool, FullAttentionSpec())]
        managers += [MambaManager(self.pool, MambaSpec()) for _ in range(states)]
        self.managers = managers
        coordinator = SimpleNamespace(single_type_managers=tuple(managers), remove_skipped_blocks=self._retire)
        self.kv_cache_manager = SimpleNamespace(block_pool=self.pool, coordinator=coordinator)
        self.running: list[object] = []
        self.requests: dict[str, Any] = {}
        self.plan: list[Any] = []

    def _retire(self, request: str, processed: int) -> None:
        for manager in self.managers[1:]:
            blocks = manager.req_to_blocks[request]
            if len(blocks) >= 2 and blocks[-2] is not self.pool.null_block:
                self.pool.free_blocks([blocks[-2]])
                blocks[-2] = self.pool.null_block

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.requests), 0

    def _preempt_request(self, request: object, stamp: float) -> None: ...

    def schedule(self, throttle: bool = False) -> Any:
        return self.plan.pop(0)()


def output(new: tuple[str, ...] = (), cached: tuple[str, ...] = (), finished: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(req_ids=list(cached), new_block_ids=[([1],)] * len(cached)),
        finished_req_ids=set(finished),
        preempted_req_ids=None,
    )


def grow(scheduler: Scheduler, name: str, attention: int, first: bool = False) -> Any:
    """A step that takes `attention` blocks and one state block per state group."""

    def run() -> Any:
        known = scheduler.requests.setdefault(name, SimpleNamespace(num_computed_tokens=0))
        scheduler.kv_cache_manager.coordinator.remove_skipped_blocks(name, known.num_computed_tokens)
        known.num_computed_tokens += 16 * attention
        for manager, count in zip(scheduler.managers, [attention, 1, 1], strict=False):
            manager.req_to_blocks[name] += scheduler.pool.get_new_blocks(count)
        return output(new=(name,)) if first else output(cached=(name,))

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_series_of_a_request_and_of_the_pool(plugin: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()
    probe = plugin.attach(scheduler, str(tmp_path / "log"))
    scheduler.plan = [grow(scheduler, "r", 7, first=True), *[grow(scheduler, "r", 7)] * 2, lambda: output(finished=("r",))]
    for _ in range(3):
        scheduler.schedule(throttle=True)
    scheduler.requests.clear()
    for manager in scheduler.managers:
        blocks = [block for block in manager.req_to_blocks.pop("r") if block is not scheduler.pool.null_block]
        scheduler.pool.free_blocks(blocks)
    scheduler.schedule()
    probe._log.close()
    said = rows(tmp_path / "log")
    assert said[0]["probe"] == "on"
    assert said[0]["blocks"] == 99
    assert [group["kind"] for group in said[0]["groups"]] == ["attention", "state", "state"]
    mine = [row for row in said if "request" in row]
    assert [(row["computed"], row["attention"], row["state"], row["kept"]) for row in mine] == [
        (112, 7, [1, 1], None),
        (224, 14, [2, 2], [1, 1]),
        (336, 21, [2, 2], [1, 1]),
    ]
    steps = [row for row in said if "step" in row]
    assert [(row["used"], row["free"], row["attention"], row["state"]) for row in steps] == [
        (9, 90, 7, 2),
        (18, 81, 14, 4),
        (25, 74, 21, 4),
        (0, 99, 0, 0),
    ]


def test_the_peak_inside_a_step_is_kept_although_the_step_ends_lower(plugin: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()
    probe = plugin.attach(scheduler, str(tmp_path / "log"))

    def one() -> Any:
        blocks = scheduler.pool.get_new_blocks(40)
        scheduler.pool.free_blocks(blocks[:30])
        scheduler.pool._maybe_evict_cached_block(blocks[0])
        scheduler._preempt_request(object(), 0.0)
        return output()

    def two() -> Any:
        scheduler.pool.touch([object()] * 5)
        return output()

    scheduler.plan = [one, two]
    scheduler.schedule()
    scheduler.schedule()
    probe._log.close()
    steps = [row for row in rows(tmp_path / "log") if "step" in row]
    assert [(row["used"], row["evictions"], row["preemptions"]) for row in steps] == [(40, 1, 1), (15, 1, 1)]


@pytest.mark.parametrize(
    ("break_it", "word"),
    [
        (lambda s: delattr(s.pool, "num_gpu_blocks"), "BlockPool.num_gpu_blocks"),
        (lambda s: setattr(s.pool, "free_block_queue", None), "BlockPool.free_block_queue"),
        (lambda s: setattr(s, "kv_cache_manager", None), "Scheduler.kv_cache_manager"),
        (lambda s: setattr(s, "requests", []), "Scheduler.requests"),
        (lambda s: delattr(s.managers[1], "req_to_blocks"), "MambaManager.req_to_blocks"),
        (lambda s: setattr(s.kv_cache_manager.coordinator, "single_type_managers", None), "single_type_managers"),
        (lambda s: setattr(s.pool.free_block_queue, "num_free_blocks", 100), "one null block"),
    ],
)
def test_what_is_missing_is_said_and_nothing_is_hooked(plugin: Any, tmp_path: Path, break_it: Any, word: str) -> None:
    scheduler = Scheduler()
    break_it(scheduler)
    before = (dict(vars(scheduler)), dict(vars(scheduler.pool)))
    assert plugin.attach(scheduler, str(tmp_path / "log")) is None
    assert (dict(vars(scheduler)), dict(vars(scheduler.pool))) == before
    for _ in range(200):
        said = rows(tmp_path / "log")
        if said:
            break
        plugin.time.sleep(0.01)
    assert said[0]["probe"] == "off"
    assert any(word in name for name in said[0]["missing"])


def test_an_error_of_its_own_ends_the_probe_not_the_step(plugin: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()
    before = (set(vars(scheduler)), set(vars(scheduler.pool)))
    probe = plugin.attach(scheduler, str(tmp_path / "log"))
    odd = SimpleNamespace(scheduled_new_reqs=None)
    scheduler.plan = [lambda: odd, lambda: "next"]
    assert scheduler.schedule() is odd
    assert (set(vars(scheduler)), set(vars(scheduler.pool))) == before, "every hook is gone"
    assert scheduler.schedule() == "next"
    probe._log.close()
    assert [row["probe"] for row in rows(tmp_path / "log")] == ["on", "off"]


def test_an_error_of_the_engine_is_the_engines(plugin: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()
    probe = plugin.attach(scheduler, str(tmp_path / "log"))

    def fail() -> Any:
        raise ValueError("engine's own")

    scheduler.plan = [fail, output]
    with pytest.raises(ValueError, match="engine's own"):
        scheduler.schedule()
    scheduler.schedule()
    probe._log.close()
    assert [row.get("step") for row in rows(tmp_path / "log")] == [None, 1]


def test_a_group_with_a_pool_of_its_own_is_left_out_and_said(plugin: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()
    scheduler.managers[2].block_pool = Pool(5)
    probe = plugin.attach(scheduler, str(tmp_path / "log"))
    probe._log.close()
    said = rows(tmp_path / "log")[0]
    assert said["missing"] == ["group 2 (MambaManager) has a pool of its own"]
    assert len(said["groups"]) == 2


def test_data_parallel_engines_name_themselves(plugin: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()
    scheduler.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=2, data_parallel_rank=1))  # type: ignore[attr-defined]
    probe = plugin.attach(scheduler, str(tmp_path / "log"))
    scheduler.plan = [output]
    scheduler.schedule()
    probe._log.close()
    assert [row["engine"] for row in rows(tmp_path / "log")] == [1, 1]


def test_the_queue_and_the_file_are_bounded(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "QUEUE_ROWS", 3)
    monkeypatch.setattr(plugin, "FLUSH_S", 3600)
    log = plugin.Log(str(tmp_path / "log"))
    for n in range(5):
        log.put(("n",), (n,))
    log.flush()
    assert rows(tmp_path / "log") == [{"n": 0}, {"n": 1}, {"n": 2}, {"probe": "dropped", "rows": 2}]
    monkeypatch.setattr(plugin, "FILE_LIMIT_BYTES", 70)
    for n in range(3):
        log.put(("long",), ("x" * 40 + str(n),))
    log.close()
    assert len(rows(tmp_path / "log")) == 4


def test_rows_that_a_full_disk_took_are_counted(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "FLUSH_S", 3600)
    log = plugin.Log(str(tmp_path / "log"))
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(fd, data[:14])

    for n in range(3):
        log.put(("n",), (n,))
    with monkeypatch.context() as patched:
        patched.setattr(plugin.os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            log.flush()
    log.put(("n",), (3,))
    log.close()
    assert (tmp_path / "log").read_text() == '{"n":0}\n{"n":1{"n":3}\n{"probe": "dropped", "rows": 3}\n'


def test_a_log_that_cannot_be_opened_is_no_error(plugin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plugin.attach(Scheduler(), str(tmp_path / "none" / "log")) is None
    assert "evenhand probe: off" in capsys.readouterr().err


def test_the_folder_declares_its_entry_point() -> None:
    found = [
        entry
        for dist in importlib.metadata.distributions(path=[str(PLUGIN)])
        for entry in dist.entry_points
        if entry.group == "vllm.general_plugins"
    ]
    assert [(entry.name, entry.value) for entry in found] == [("evenhand_probe", "evenhand_probe:register")]


FAKE = """
class Scheduler:
    def __init__(self, word):
        self.word = word
"""


def in_process(tmp_path: Path, code: str, log: bool = True) -> list[dict[str, Any]]:
    """Run code beside a stand-in package `vllm`, the probe on PYTHONPATH; the rows it left."""
    package = tmp_path / "vllm" / "v1" / "core" / "sched"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:3]):
        (folder / "__init__.py").write_text("")
    (package / "scheduler.py").write_text(FAKE)
    env = {"PYTHONPATH": f"{PLUGIN}:{tmp_path}", **({"EVENHAND_PROBE_LOG": str(tmp_path / "log")} if log else {})}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return rows(tmp_path / "log") if (tmp_path / "log").exists() else []


LOAD = "from importlib.metadata import entry_points\nfor e in entry_points(group='vllm.general_plugins'): e.load()()\n"
IMPORT = "import vllm.v1.core.sched.scheduler as s\n"
MAKE = IMPORT + "assert s.Scheduler('w').word == 'w'\nassert s.__loader__.get_source(s.__name__)\n"


@pytest.mark.parametrize("code", [LOAD + MAKE, IMPORT + LOAD + MAKE, LOAD + LOAD + MAKE])
def test_loaded_before_or_after_the_scheduler_module(tmp_path: Path, code: str) -> None:
    found = in_process(tmp_path, code)
    assert [row["probe"] for row in found] == ["off"], "one scheduler, one row: the stand-in has no pool"
    assert "Scheduler.kv_cache_manager" in found[0]["missing"]


def test_a_process_without_a_scheduler_writes_nothing(tmp_path: Path) -> None:
    assert in_process(tmp_path, LOAD + "import vllm.v1.core.sched\n") == []


def test_without_the_variable_nothing_happens(tmp_path: Path) -> None:
    code = LOAD + "import sys\nassert not any('OnImport' in type(f).__name__ for f in sys.meta_path)\n" + MAKE
    assert in_process(tmp_path, code, log=False) == []


def test_rows_are_written_when_a_multiprocessing_child_ends(tmp_path: Path) -> None:
    code = LOAD + (
        "import multiprocessing\n"
        "def child():\n"
        "    import vllm.v1.core.sched.scheduler as s\n"
        "    s.Scheduler('w')\n"
        "if __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('fork').Process(target=child)\n"
        "    p.start(); p.join()\n"
    )
    assert [row["probe"] for row in in_process(tmp_path, code)] == ["off"]
