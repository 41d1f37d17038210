"""Proof of the GPU path on a machine with an NVIDIA GPU: stage by stage, resumable, in calls of ten minutes.

`python benchmarks/gpu_proof.py --out FOLDER` runs what is not done yet and writes `gpu-proof.json` there after every
stage; the same command goes on. `--stand-in cpu` tries the stages on a processor, and is written down as that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accel_platform.atomic_write import write_durably

REPORT = "gpu-proof.json"
CAMPAIGN = "campaign.parquet"
KERNELS = "kernels.parquet"
_LIMIT_S = 480.0
"""Most seconds of a stage that can go on in the next call; any other may take three times what it needs."""


@dataclass(frozen=True)
class Stage:
    """One part of the proof. `needs_s` is what it takes at least: with less left it waits for the next call."""

    name: str
    what: str
    needs_s: float
    partial: bool = False
    """True if the stage goes on in the next call where time ran out."""
    beside: bool = False
    """True if the stage may run beside others, because it judges numbers and neither times nor memory."""


STAGES = (
    Stage("models", "weights, inputs and references of the campaign, made beside the other stages", 100, beside=True),
    Stage("contract", "the backend's contract tests, eager, compiled and as a CUDA graph", 80, beside=True),
    Stage("precisions", "products counted in float32, tf32, float16, bfloat16; a product in fp8", 60, beside=True),
    Stage("ways", "torch.compile and CUDA graphs against eager", 60, beside=True),
    Stage("modes", "generation and training, verified", 70, beside=True),
    Stage("collectives", "training through NCCL in one process", 60, beside=True),
    Stage("memory", "peak memory against the allocator and NVML", 20),
    Stage("out_of_memory", "a batch too large fails with a reason, and the process goes on", 20),
    Stage("kills", "a killed child leaves no memory on the device", 30),
    Stage("energy", "counted energy against integrated power", 25),
    Stage("clocks", "clocks, power and throttling are noted", 15),
    Stage("synchronized", "every sample waits for the device; a planted one that does not is caught", 30),
    Stage("timing", "p50 of 12 models against torch.utils.benchmark and device events", 90),
    Stage("kernels", "a sweep of single operators for the operator predictor", 60, partial=True),
    Stage("campaign", "60 models and more, batch sizes, precisions, eager and compiled", 60, partial=True),
    Stage("predictions", "what was predicted before, against what was measured", 5, partial=True),
)
_QUIET_FROM = next(i for i, stage in enumerate(STAGES) if stage.name == "synchronized")
"""First stage that needs an idle processor, so the tracing of models has to end before it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; what is done there is skipped")
    parser.add_argument("--earlier", type=Path, help="folder that an earlier call on another machine wrote")
    parser.add_argument("--home", type=Path, help="state directory of the measurements (default: OUT.home)")
    parser.add_argument("--hardware", default="cuda", choices=["cuda", "rocm"], help="the hardware to prove")
    parser.add_argument("--stand-in", choices=["cpu"], help="try the stages here: nothing is recorded as cuda")
    parser.add_argument("--only", action="append", choices=[stage.name for stage in STAGES])
    parser.add_argument("--again", action="store_true", help="run stages again that failed or were unavailable")
    parser.add_argument("--seconds", type=float, default=560.0, help="the most that this call may take")
    parser.add_argument("--list", action="store_true", help="print the stages, and stop")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list:
        for stage in STAGES:
            print(f"{stage.name:14} {stage.what}")
        return
    arguments.home = arguments.home or arguments.out.with_name(f"{arguments.out.name}.home")
    if arguments.stage:
        print(json.dumps(_run_here(arguments)), flush=True)
        return
    report = _begin(arguments)
    until = time.monotonic() + arguments.seconds
    todo = [stage for stage in STAGES if _is_open(stage, report, arguments)]
    writing = threading.Lock()

    def run(stage: Stage) -> None:
        if until - time.monotonic() < stage.needs_s:
            _say(f"{stage.name}: left to the next call, {until - time.monotonic():.0f} s are too few")
            return
        _say(f"{stage.name}: {stage.what} …")
        most = _LIMIT_S if stage.partial else 3 * stage.needs_s
        found = _run_stage(stage, arguments, min(most, until - time.monotonic()))
        with writing:
            report["stages"][stage.name] = found
            _write(arguments.out, report)
        _say(_line(stage.name, found))

    with ThreadPoolExecutor(len(STAGES)) as pool:
        running = {stage.name: pool.submit(run, stage) for stage in todo if stage.beside}
        for name, under_way in running.items():
            if name != "models":
                under_way.result()
        for stage in todo:
            if stage.beside:
                continue
            if "models" in running and STAGES.index(stage) >= _QUIET_FROM:
                running["models"].result()
            run(stage)
    _finish(report, for_machines=arguments.json)


def _is_open(stage: Stage, report: dict[str, Any], arguments: argparse.Namespace) -> bool:
    """Return whether this call is to run the stage."""
    if stage.name == "models":
        # They are not kept from call to call.
        return _is_open(next(s for s in STAGES if s.name == "campaign"), report, arguments)
    if arguments.only and stage.name not in arguments.only:
        return False
    done = report["stages"].get(stage.name)
    return not done or done["status"] == "partial" or (done["status"] != "pass" and arguments.again)


def _begin(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the report so far, after taking over that of an earlier call."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.stand_in is None:
        _require_one_device(arguments)
    for name in (REPORT, CAMPAIGN, KERNELS):
        earlier = arguments.earlier and arguments.earlier / name
        if earlier and earlier.is_file() and not (arguments.out / name).exists():
            shutil.copy(earlier, arguments.out / name)
    if (arguments.out / CAMPAIGN).is_file():
        from accel_platform.events import EventLog
        from accel_platform.settings import Settings

        EventLog.open(Settings(home=arguments.home)).adopt(arguments.out / CAMPAIGN)
    stands_in = arguments.stand_in is not None
    path = arguments.out / REPORT
    if path.is_file():
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if report["stand_in"] != stands_in:
            raise SystemExit(f"{path} is of {'a stand-in' if report['stand_in'] else 'a device'}: name another --out.")
        return report
    return {"hardware": arguments.stand_in or arguments.hardware, "stand_in": stands_in, "stages": {}}


def _require_one_device(arguments: argparse.Namespace) -> None:
    """Stop if the results to continue are of another device than this machine's."""
    probe = "import sys; from accel_platform.backends.probes import PROBES; print(PROBES[sys.argv[1]](None)['name'])"
    # In a process of its own: one that has looked at a GPU keeps some of its memory.
    asked = subprocess.run(
        [sys.executable, "-c", probe, arguments.hardware], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        return  # each stage says why there is no device
    here = asked.stdout.strip()
    for place, device in _devices_before(arguments):
        if device != here:
            raise SystemExit(
                f"{place} holds results of {device}, and this is {here}: name another --out and --home, and no "
                "--earlier."
            )


def _devices_before(arguments: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """Yield each folder with results of earlier calls, and their device."""
    for folder in (arguments.out, arguments.earlier):
        if folder and (path := folder / REPORT).is_file():
            stages = json.loads(path.read_text(encoding="utf-8"))["stages"].values()
            yield from (
                (folder, found["machine"]["device"]) for found in stages if "device" in found.get("machine", {})
            )
    if arguments.home.is_dir():
        import gpu_campaign

        measured = (found for found in gpu_campaign.results(arguments.home) if found.hardware == arguments.hardware)
        yield from ((arguments.home, str(found.device_name)) for found in measured)


def _run_stage(stage: Stage, arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Run a stage in a process of its own, which keeps the device for itself and may be killed."""
    command = [sys.executable, __file__, "--out", str(arguments.out), "--home", str(arguments.home)]
    command += ["--hardware", arguments.hardware, "--stage", stage.name]
    command += ["--stand-in", arguments.stand_in] if arguments.stand_in else []
    command += ["--until", str(time.monotonic() + seconds - 15)]
    began = time.monotonic()
    found: dict[str, Any] = {"status": "fail", "figures": [], "absent": []}
    arguments.home.mkdir(parents=True, exist_ok=True)
    log = arguments.home / f"{stage.name}.log"
    with log.open("wb") as errors:
        # In a session of its own, so that its measuring children can be ended with it: they hold the device.
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            answer, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            reason = f"it took longer than {seconds:.0f} s"
            found |= {"status": "partial" if stage.partial else "fail", "reason": reason}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    said = log.read_text(encoding="utf-8", errors="replace").strip()
    if child.returncode == 0:
        found = json.loads(answer.strip().splitlines()[-1])
    elif "reason" not in found:
        last = said.splitlines()[-1:] or ["it said nothing"]
        found["reason"] = f"the stage ended with exit code {child.returncode}: {last[0][:300]}"
    with (arguments.out / "gpu-proof.log").open("a", encoding="utf-8") as all_said:
        all_said.write(f"== {stage.name}\n{said}\n")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {**found, "seconds": round(time.monotonic() - began, 1), "finished_at": now}


def _run_here(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a stage in this process; return its outcome."""
    import torch

    from accel_platform.backends.probes import PROBES, Absent
    from gpu_target import Outcome, Target

    hardware = arguments.stand_in or arguments.hardware
    target = Target(hardware, arguments.home, arguments.stand_in is not None)
    machine = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if not target.stand_in:
        # Not `detect`, which looks at every runtime and would cost each stage some seconds of the device.
        try:
            facts = PROBES[hardware](None)
        except Absent as absent:
            return {"status": "unavailable", "reason": str(absent), "figures": [], "absent": [], "machine": machine}
        machine |= {"device": str(facts["name"]), "driver": str(facts["driver"])}
    outcome: Outcome = _runner(arguments)(target)
    status = outcome.status if outcome.complete else "fail" if outcome.status == "fail" else "partial"
    reason = None if outcome.figures else "; ".join(outcome.absent)
    machine |= {"stand_in": target.hardware} if target.stand_in else {}
    return {
        "status": status,
        "reason": reason,
        "figures": outcome.figures,
        "absent": outcome.absent,
        "machine": machine,
    }


def _runner(arguments: argparse.Namespace) -> Callable[[Any], Any]:
    """Return the function of the stage that the arguments name."""
    import gpu_checks
    import gpu_resources
    import gpu_stages

    name, out, until = arguments.stage, arguments.out, arguments.until
    if name == "models":
        return gpu_stages.models
    if name == "kernels":
        return lambda target: gpu_stages.kernels(target, out / KERNELS, until)
    if name == "campaign":
        return lambda target: gpu_stages.campaign(target, out / CAMPAIGN, until)
    if name == "predictions":
        return gpu_stages.predictions
    found: Callable[[Any], Any] = getattr(gpu_checks if hasattr(gpu_checks, name) else gpu_resources, name)
    return found


def _write(out: Path, report: dict[str, Any]) -> None:
    write_durably(out / REPORT, (json.dumps(report, indent=1, default=str) + "\n").encode())


def _line(name: str, stage: dict[str, Any]) -> str:
    failed = [f"{f['what']}: {f['got']} (reach {f['reach']})" for f in stage["figures"] if f["met"] is False]
    why = "; ".join(failed) or stage.get("reason") or ""
    met = sum(figure["met"] is True for figure in stage["figures"])
    return f"{name}: {stage['status']}, {met} figures met, {stage['seconds']:.0f} s{f'; {why}' if why else ''}"


def _finish(report: dict[str, Any], *, for_machines: bool) -> None:
    if for_machines:
        print(json.dumps(report, indent=1, default=str))
    else:
        kind = f"a stand-in ({report['hardware']}), no proof of a GPU" if report["stand_in"] else report["hardware"]
        print(f"Proof on {kind}")
        for stage in STAGES:
            done = report["stages"].get(stage.name)
            print(_line(stage.name, done) if done else f"{stage.name}: not run yet")
    open_stages = [s.name for s in STAGES if report["stages"].get(s.name, {}).get("status") in (None, "partial")]
    if open_stages:
        _say(f"The same command goes on with {', '.join(open_stages)}.")
    if any(stage["status"] == "fail" for stage in report["stages"].values()):
        raise SystemExit(1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
