"""Detection says what is here and why the rest is not, and its ids hold still."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar, get_args

import psutil
import pytest

from accel_platform.backends.detect import Inventory, detect, fingerprint_of
from accel_platform.backends.probes import kernel_module_version, openvino_facts, visible_memory_gib
from accel_platform.backends.registry import RUNTIMES, in_browser, runtime_for
from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog
from accel_platform.events.types import DeviceObserved, Hardware
from accel_platform.hardware.cpu import _from_proc_cpuinfo, state_now, usable_cores
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    return detect()


def test_every_hardware_name_is_there_with_a_device_or_a_reason(inventory: Inventory) -> None:
    assert list(inventory.names[: len(RUNTIMES)]) == list(get_args(Hardware)) == list(RUNTIMES)
    assert all(device.choice for device in inventory.devices[len(RUNTIMES) :])
    for device in inventory.devices:
        if device.available:
            assert device.device_id
            assert device.name
            assert device.reason is None
            assert device.runtime_versions
        else:
            assert device.reason
            assert device.device_id is None
            assert device.name is None
    assert inventory.device("abacus") is None


def test_what_is_said_to_be_available_is(inventory: Inventory) -> None:
    import onnxruntime
    import openvino
    import torch

    def available(name: str) -> bool:
        device = inventory.device(name)
        assert device is not None
        return device.available

    assert available("cpu")
    assert available("cuda") == (torch.version.cuda is not None and torch.cuda.is_available())
    assert available("rocm") == (torch.version.hip is not None and torch.cuda.is_available())
    assert available("mps") == torch.backends.mps.is_available()
    assert available("openvino") == ("CPU" in openvino.Core().available_devices)
    assert available("onnxruntime") == ("CPUExecutionProvider" in onnxruntime.get_available_providers())
    assert available("jax") == (find_spec("jax") is not None)


def test_the_emulator_is_told_from_the_device(inventory: Inventory) -> None:
    pytest.importorskip("onnxruntime_qnn")
    from accel_platform.backends import qnn

    device = inventory.device("qnn")
    assert device is not None
    assert device.available
    assert device.emulated == qnn.is_emulated(qnn.find_device())
    assert not device.emulated or "emulator" in str(device.driver)


def test_versions_are_those_of_the_imported_runtimes(inventory: Inventory) -> None:
    import onnxruntime
    import openvino
    import torch

    versions = {d.hardware: d.runtime_versions for d in inventory.devices}
    assert torch.__version__.startswith(versions["cpu"]["torch"]), (
        "a CUDA build adds +cu130 to the version of its package"
    )
    assert versions["onnxruntime"]["onnxruntime"] == onnxruntime.__version__
    assert openvino.__version__.startswith(versions["openvino"]["openvino"])


def test_names_on_one_processor_share_its_device_but_not_the_fingerprint(inventory: Inventory) -> None:
    on_cpu = [d for d in inventory.devices if d.available and d.hardware in ("cpu", "openvino", "onnxruntime", "jax")]
    assert len({d.device_id for d in on_cpu}) == 1
    assert on_cpu[0].device_id is not None
    assert on_cpu[0].device_id.startswith("cpu-")
    assert len({fingerprint_of(d, threads=2) for d in on_cpu}) == len(on_cpu)


def test_the_fingerprint_follows_versions_and_threads_but_not_the_clock(inventory: Inventory) -> None:
    device = inventory.device("cpu")
    assert device is not None
    same = device.model_copy(update={"clock_max_mhz": 1234.0, "governor": "powersave"})
    newer = device.model_copy(update={"runtime_versions": {"torch": "99"}})
    assert fingerprint_of(device, threads=2) == fingerprint_of(same, threads=2)
    assert fingerprint_of(device, threads=2) != fingerprint_of(newer, threads=2)
    assert fingerprint_of(device, threads=2) != fingerprint_of(device, threads=1)


def test_ids_are_the_same_in_another_process(inventory: Inventory) -> None:
    script = (
        "from accel_platform.hardware.host import host_id; from accel_platform.backends.probes import processor_id;"
        "print(host_id(), processor_id())"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    device = inventory.device("cpu")
    assert device is not None
    assert run.stdout.split() == [inventory.host_id, device.device_id]


@pytest.mark.slow
def test_an_installation_without_extras_detects_the_rest() -> None:
    extras = ("playwright", "jax", "onnxruntime_qnn", "pynvml", "dagster_postgres")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({extras}));"
        "from accel_platform.backends.detect import detect;"
        "print(*(f'{d.hardware}: {d.reason}' for d in detect().devices), sep='\\n')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    reasons = dict(line.split(": ", 1) for line in run.stdout.splitlines())
    assert {reasons[name] for name in ("cpu", "openvino", "onnxruntime")} == {"None"}
    for name, missing in (("jax", "jax"), ("qnn", "onnxruntime-qnn"), ("wasm", "playwright"), ("webgpu", "playwright")):
        assert re.match(f"{missing}.* (not installed|cannot be imported)", reasons[name])


def test_the_host_is_described_as_the_system_sees_it(inventory: Inventory) -> None:
    host = inventory.host
    assert host.cpu_cores_logical == psutil.cpu_count()
    assert host.memory_mib == pytest.approx(psutil.virtual_memory().total / 2**20)
    assert host.software["python"] == ".".join(map(str, sys.version_info[:3]))


def test_the_observation_becomes_events(inventory: Inventory) -> None:
    events = inventory.events(run_id="run-1")
    assert [e.type for e in events] == ["HostObserved"] + ["DeviceObserved"] * len(inventory.devices)
    assert {e.host_id for e in events} == {inventory.host_id}
    assert {e.run_id for e in events} == {"run-1"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs processor affinity")
def test_fewer_cores_are_usable_where_affinity_withholds_them() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= usable_cores() <= len(before)


def test_the_state_holds_only_what_can_be_read() -> None:
    state = state_now()
    assert state["load_average_1min"] >= 0
    assert None not in state.values()


def test_processors_are_read_on_arm_too() -> None:
    text = (
        "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd aes sve bf16\nCPU implementer\t: 0x41\n"
        "CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n\nprocessor\t: 1\n"
    )
    facts = _from_proc_cpuinfo(text)
    assert facts["vendor"] == "0x41"
    assert facts["model"] == "0xd40"
    assert facts["features"] == "asimd bf16 sve"
    assert facts["name"]


def test_an_unknown_hardware_name_is_refused_with_the_closest() -> None:
    with pytest.raises(InvalidInput, match="Did you mean openvino"):
        runtime_for("openvion")
    assert runtime_for("CUDA").hardware == "cuda"
    assert runtime_for("Qualcomm").name == "qnn", "as the old guide calls it"


def test_a_name_may_choose_among_a_runtimes_devices_and_browsers() -> None:
    assert runtime_for("OpenVINO:GPU.1").name == "openvino:gpu.1"
    assert runtime_for("openvino:cpu") == runtime_for("openvino")
    assert runtime_for("wasm:firefox").hardware == "wasm"
    assert in_browser("webgpu", "edge") == "webgpu:edge"
    assert in_browser("wasm:firefox", "edge") == "wasm:firefox"
    assert in_browser("cpu", "edge") == "cpu"
    for name, words in (
        ("wasm:opera", "chromium|chrome|edge|firefox"),
        ("cpu:1", "cpu:<compile>"),
        ("openvino:tpu", "npu"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(words)):
            runtime_for(name)


def test_a_device_or_browser_that_was_asked_for_is_there_or_refused_with_the_reason() -> None:
    asked = ("openvino:gpu.7", "wasm:edge", "wasm:firefox")
    inventory = detect(asked)
    assert inventory.names[-3:] == asked
    gpu, *browsers = (inventory.device(name) for name in asked)
    assert gpu is not None
    assert not gpu.available
    assert "OpenVINO finds no GPU.7 here, only CPU" in str(gpu.reason)
    for device in browsers:
        assert device is not None
        if device.available:
            assert set(device.runtime_versions) >= {device.choice, "onnxruntime-web"}
            assert fingerprint_of(device, threads=1) != fingerprint_of(gpu, threads=1)
        else:
            assert device.reason


def test_the_newest_look_is_what_the_table_holds(inventory: Inventory, settings: Settings, log: EventLog) -> None:
    def tabled() -> list[tuple[str, str | None, bool]]:
        refresh(settings)
        rows = Reader(settings).rows("SELECT hardware, choice, available FROM devices WHERE hardware = 'openvino'")
        return sorted(((row["hardware"], row["choice"], row["available"]) for row in rows), key=str)

    (plain,) = (device for device in inventory.devices if device.hardware == "openvino" and device.choice is None)
    gpu = plain.model_copy(update={"choice": "gpu", "device_id": "gpu-arc-1"})
    log.append(replace(inventory, devices=(plain, gpu)).events())
    assert tabled() == [("openvino", "gpu", True), ("openvino", None, True)]
    log.append(replace(inventory, devices=(plain,)).events())
    assert tabled() == [("openvino", None, True)]


class StandIn:
    """Answers of OpenVINO's `Core` for a GPU and an NPU: names and units as its documentation gives them."""

    told: ClassVar[dict[str, dict[str, Any]]] = {
        "GPU.1": {
            "FULL_DEVICE_NAME": "Intel(R) Arc(TM) A770 Graphics (dGPU)",
            "DEVICE_ARCHITECTURE": "GPU: vendor=0x8086 arch=v12.55.8",
            "GPU_DEVICE_TOTAL_MEM_SIZE": 16 * 2**30,
            "GPU_EXECUTION_UNITS_COUNT": 512,
        },
        "NPU": {"FULL_DEVICE_NAME": "Intel(R) AI Boost", "NPU_DRIVER_VERSION": 1688991616},
    }

    def get_property(self, device: str, name: str) -> Any:
        return list(self.told[device]) if name == "SUPPORTED_PROPERTIES" else self.told[device][name]


def test_what_openvino_tells_of_a_device_is_kept_and_what_it_does_not_is_unknown() -> None:
    arc, npu = (openvino_facts(StandIn(), device) for device in ("GPU.1", "NPU"))
    assert arc["device_id"].startswith("gpu-intel-r-arc-tm-a770-graphics-dgpu-")
    assert (arc["memory_mib"], arc["cores"], arc["vendor"], arc["driver"]) == (16384, 512, "Intel", None)
    assert npu["device_id"].startswith("npu-intel-r-ai-boost-")
    assert (npu["memory_mib"], npu["cores"], npu["driver"]) == (None, None, "1688991616")
    for facts in (arc, npu):
        DeviceObserved(hardware="openvino", choice="gpu.1", backend="openvino", available=True, **facts)


def test_the_version_of_nvidias_driver_is_read_of_both_kinds_of_module() -> None:
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (root@build)\n"
    assert kernel_module_version(closed) == "535.104.05"
    assert kernel_module_version(opened) == "565.57.01"
    assert kernel_module_version("NVRM version: something else 1.2") is None


def test_equal_boards_are_one_device_whatever_the_driver_keeps_of_their_memory() -> None:
    mib = 2**20
    assert {visible_memory_gib(seen * mib) for seen in (81_082, 81_089, 81_090, 81_559)} == {80}
    assert {visible_memory_gib(seen * mib) for seen in (40_331, 40_514)} == {40}
    assert {visible_memory_gib(seen * mib) for seen in (24_080, 24_217)} == {24}
    assert {visible_memory_gib(round(seen * 1024) * mib) for seen in (139.80, 139.81, 140.06, 140.40)} == {140}
    assert {visible_memory_gib(round(seen * 1024) * mib) for seen in (47.4, 47.99)} == {48}
    assert visible_memory_gib(95_830 * mib) > 80, "an H100 NVL is no H100 SXM"
