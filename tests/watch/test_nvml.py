"""NVML readings from a stub of the library: the right device, null with a reason, foreign processes."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenhand.records import GpuRow
from evenhand.watch import nvml
from evenhand.watch.child import Appender
from evenhand.watch.gpu import GpuLoop


class Error(Exception):
    """The stub's NVMLError."""


class Stub:
    """Three cards; utilisation 5, 0, 40; card 1 is cut into two MIG slices. `lacks` names calls that raise Not Supported."""

    NVMLError = Error
    UUIDS = ("GPU-aa-1", "GPU-ab-2", "GPU-cc")
    MIG = ("MIG-11", "MIG-12")

    def __init__(self, count: int = 3, lacks: tuple[str, ...] = (), pids: tuple[int, ...] = (50,), mig: bool = False) -> None:
        self.count, self.pids, self.mig = count, pids, mig
        for name in lacks:
            setattr(self, name, self._unsupported)

    def _unsupported(self, *_: Any) -> Any:
        raise Error("Not Supported")

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self.UUIDS[index]

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [int(self.mig and handle == "GPU-ab-2"), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= 2:
            raise Error("Not Found")
        return self.MIG[index]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=512 << 20 if handle.startswith("MIG") else 1 << 30, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle.startswith("MIG"):
            raise Error("Not Supported")
        return SimpleNamespace(gpu={"GPU-aa-1": 5, "GPU-ab-2": 0, "GPU-cc": 40}[handle])

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert (kind, handle[:3]) == (1, "GPU"), "the SM clock of the card"
        return 1650

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 250_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return 123_456

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return 0x4

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        return 41

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in self.pids]


PARENTS = {50: 40, 40: 7, 7: 1, 60: 1, 9: 1}
"""50 is our engine's worker under guardian 7; 60 is somebody else's"""


@pytest.mark.parametrize("visible", ["2", "GPU-cc"])
def test_b79_the_named_device_and_no_other(visible: str) -> None:
    chosen = nvml.devices(Stub(), visible, "PCI_BUS_ID")
    assert [(device.uuid, device.number) for device in chosen.devices] == [("GPU-cc", 2)]
    assert chosen.warnings == []
    assert nvml.read_fields(Stub(), chosen.devices[0], (7,), PARENTS.get).fields["utilisation_pct"] == 40


def test_b79_unset_means_all_by_uuid_and_none_by_guess() -> None:
    assert [device.uuid for device in nvml.devices(Stub(), None).devices] == list(Stub.UUIDS)


@pytest.mark.parametrize(
    ("visible", "uuids", "warned"),
    [
        ("2,0", ["GPU-cc", "GPU-aa-1"], False),
        ("GPU-c", ["GPU-cc"], False),
        ("GPU-a", [], True),
        ("0,9,1", ["GPU-aa-1"], True),
        ("0,-1,1", ["GPU-aa-1"], False),
        ("", [], False),
        ("-1", [], False),
        ("NoDevFiles", [], True),
        ("1,1", ["GPU-ab-2"], False),
        ("MIG-12", ["MIG-12"], False),
        ("MIG-1", [], True),
        (" 1 , 2 ", ["GPU-ab-2", "GPU-cc"], False),
    ],
)
def test_visible_devices_as_cuda_reads_them(visible: str, uuids: list[str], warned: bool) -> None:
    chosen = nvml.devices(Stub(mig=True), visible, "PCI_BUS_ID")
    assert [device.uuid for device in chosen.devices] == uuids
    assert bool(chosen.warnings) == warned


def test_b79_an_index_in_cudas_own_order_is_warned_about() -> None:
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in nvml.devices(Stub(), "2").warnings[0]
    assert nvml.devices(Stub(count=1), "0").warnings == []


def test_a_whole_reading() -> None:
    reading = nvml.read_fields(Stub(), nvml.devices(Stub(), "GPU-cc").devices[0])
    assert GpuRow(leg=4, t_ns=99, **reading.fields, reasons=reading.reasons) == GpuRow(
        leg=4,
        t_ns=99,
        uuid="GPU-cc",
        index=2,
        memory_used_bytes=1 << 30,
        memory_total_bytes=80 << 30,
        utilisation_pct=40.0,
        sm_clock_mhz=1650,
        power_w=250.5,
        energy_mj=123_456,
        clock_reasons=4,
        power_limit_w=700.0,
        temperature_c=41.0,
        foreign_pids=None,
        reasons={"foreign_pids": "no process of ours was named"},
    )


CALLS = {
    "nvmlDeviceGetUtilizationRates": "utilisation_pct",
    "nvmlDeviceGetMemoryInfo": "memory_used_bytes",
    "nvmlDeviceGetClockInfo": "sm_clock_mhz",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_mj",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetComputeRunningProcesses": "foreign_pids",
}


@pytest.mark.parametrize("call", CALLS)
def test_b78_what_a_device_lacks_is_null_with_its_reason(call: str) -> None:
    lib = Stub(lacks=(call,))
    reading = nvml.read_fields(lib, nvml.devices(lib, "GPU-cc").devices[0], (7,), PARENTS.get)
    assert reading.fields[CALLS[call]] is None
    assert reading.reasons[CALLS[call]] == "Not Supported"
    others = {name for name, value in reading.fields.items() if value is None} - {CALLS[call], "memory_total_bytes"}
    assert others == set(), "one missing figure takes no other along"


def test_b78_a_mig_slice_has_its_memory_and_no_utilisation() -> None:
    lib = Stub(mig=True)
    reading = nvml.read_fields(lib, nvml.devices(lib, "MIG-11").devices[0], (7,), PARENTS.get)
    assert reading.fields["memory_used_bytes"] == 512 << 20
    assert reading.fields["utilisation_pct"] is None
    assert reading.fields["sm_clock_mhz"] == 1650
    assert (reading.fields["uuid"], reading.fields["index"]) == ("MIG-11", 1)


def test_b78_zero_only_when_the_driver_says_zero() -> None:
    device = nvml.devices(Stub(), "GPU-ab-2").devices[0]
    assert nvml.read_fields(Stub(), device).fields["utilisation_pct"] == 0.0


def test_clock_reasons_under_the_old_name() -> None:
    lib = Stub(lacks=("nvmlDeviceGetCurrentClocksEventReasons",))
    lib.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x20  # type: ignore[attr-defined]
    assert nvml.read_fields(lib, nvml.devices(lib, "0").devices[0]).fields["clock_reasons"] == 0x20


@pytest.mark.parametrize(
    ("pids", "roots", "others", "why"),
    [
        ((50,), (7,), [], None),
        ((50, 60), (7,), [60], None),
        ((60,), (7,), [60], None),
        ((), (7,), None, "container"),
        ((70000,), (7,), None, "pid namespace"),
        ((50, 70000), (7,), [], None),
        ((50,), (), None, "no process of ours"),
    ],
)
def test_b78_foreign_processes(
    pids: tuple[int, ...], roots: tuple[int, ...], others: list[int] | None, why: str | None
) -> None:
    found, reason = nvml.foreign(pids, roots, PARENTS.get)
    assert found == others
    assert (why is None) == (reason is None)
    assert why is None or why in (reason or "")


def test_parent_pid_of_this_process() -> None:
    import os

    assert nvml.parent_pid(os.getpid()) == os.getppid()
    assert nvml.parent_pid(2**22 + 1) is None


def config(**more: Any) -> dict[str, Any]:
    return {"leg": 1, "visible": None, "device_order": None, "gpu_interval_s": 0.001, "roots": [7], **more}


def test_b76_every_reading_is_a_row_with_its_clock(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    stop = threading.Event()
    path = tmp_path / "gpu.jsonl"

    class Rows(Appender):
        count = 0

        def row(self, row: dict[str, Any]) -> None:
            super().row(row)
            self.count += 1
            if self.count == 6:
                stop.set()

    loop = GpuLoop(config(visible="0,2"), Rows(str(path)).row, stop, lambda **event: said.append(event), lib=Stub())
    loop.run()
    stored = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["uuid"] for row in stored] == ["GPU-aa-1", "GPU-cc"] * 3
    assert all(row["sm_clock_mhz"] == 1650 for row in stored)
    assert ["reasons" in row for row in stored] == [True, True, False, False, False, False]
    assert said[-1]["uuids"] == ["GPU-aa-1", "GPU-cc"]


@pytest.mark.parametrize(("lib", "word"), [(Stub(count=0), "no GPU is visible"), (None, "no GPU telemetry")])
def test_b78_no_gpu_is_one_word_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lib: Any, word: str) -> None:
    said: list[dict[str, Any]] = []

    def fail() -> Any:
        raise nvml.NvmlError("no GPU telemetry: NVML Shared Library Not Found")

    monkeypatch.setattr(nvml, "load", fail)
    path = tmp_path / "gpu.jsonl"
    GpuLoop(config(), Appender(str(path)).row, threading.Event(), lambda **event: said.append(event), lib=lib).run()
    assert path.read_text() == ""
    assert len(said) == 1
    assert word in said[0]["reasons"]["*"]


def test_a_driver_that_breaks_ends_the_thread_not_the_process(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    lib = Stub(lacks=("nvmlDeviceGetCount",))
    GpuLoop(config(), Appender(str(tmp_path / "g")).row, threading.Event(), lambda **event: said.append(event), lib=lib).run()
    assert said == [{"what": "warning", "text": "GPU telemetry ended: Error: Not Supported"}]


def test_used_bytes_is_null_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", lambda: Stub())
    assert nvml.used_bytes("0,2", "PCI_BUS_ID") == 2 << 30
    assert nvml.used_bytes("") is None

    def fail() -> Any:
        raise nvml.NvmlError("none")

    monkeypatch.setattr(nvml, "load", fail)
    assert nvml.used_bytes(None) is None
