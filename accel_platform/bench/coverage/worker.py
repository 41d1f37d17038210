"""Coverage worker process: builds small models of each architecture, runs them, and exports them for OpenVINO.

One process takes many architectures, because importing torch and transformers takes longer than a check.
"""

from __future__ import annotations

import gc
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accel_platform.bench.measure.failures import classify
from accel_platform.subprocesses.json_child import Message, serve

MAX_PARAMETERS = 250_000_000
"""A gigabyte in float32; what is larger at every scale is reported as too large."""


class StageFailed(Exception):
    """A failed step of a check; the cause is chained."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ArchitectureTooLarge(Exception):
    """No scale brings the architecture under `MAX_PARAMETERS`."""


class NotFinite(Exception):
    """The forward pass gave infinities or no numbers at all."""


def check_job(job: Message, send: Callable[[Message], None]) -> None:
    """Check every model type of the job on every hardware name of it; send one message per pair, in order."""
    import torch
    import transformers  # noqa: F401 - what is imported before `freeze` is never gone through again

    # With a limit, too large an allocation fails in this process; without one the kernel would kill any process.
    limit = int(job["memory_mib"]) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(job["threads"])
    # Exporting creates millions of objects, so keep the garbage collector off the objects of the imports.
    gc.freeze()
    for model_type, names in job["model_types"]:
        start = time.monotonic()
        try:
            found = _build_and_run(model_type)
        except Exception as error:  # noqa: BLE001 - an architecture may fail in any way, and then only it does
            for name in names:
                send(_failure_answer(model_type, name, error, start))
            continue
        for name in names:
            try:
                verdict = {"cpu": _check_on_cpu, "openvino": _check_on_openvino}[name](found, job["threads"])
                duration_s = time.monotonic() - start
                send(_answer(model_type, name, **found["facts"], **verdict, duration_s=duration_s))
            except Exception as error:  # noqa: BLE001 - likewise
                send({**_failure_answer(model_type, name, error, start), **found["facts"]})
            start = time.monotonic()


def _answer(model_type: str, hardware: str, **facts: Any) -> Message:
    return {"kind": "checked", "model_type": model_type, "hardware": hardware, **facts}


def _failure_answer(model_type: str, hardware: str, error: Exception, start: float) -> Message:
    stage = error.name if isinstance(error, StageFailed) else "error"
    cause = error.__cause__ if isinstance(error, StageFailed) and isinstance(error.__cause__, Exception) else error
    known, reason = classify(cause)
    failure_class = known if known == "out_of_memory" else stage
    if isinstance(cause, ImportError):
        failure_class = "missing_dependency"
    elif known == "unsupported_operator" and stage in ("export", "compile"):
        failure_class = known
    return _answer(
        model_type,
        hardware,
        status="failed",
        failure_class=failure_class,
        reason=reason,
        duration_s=time.monotonic() - start,
    )


@contextmanager
def _stage(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise StageFailed(name) from error


def _build_and_run(model_type: str) -> Message:
    """Build the model at the first scale that runs; return it with inputs, outputs and reported facts."""
    from accel_platform.workloads.tiny_configs import SCALES, default_config

    with _stage("config"):
        config = default_config(model_type)
    complaint: StageFailed | None = None
    # Prefer all inputs at a larger scale to text alone at a smaller one.
    for partial in (False, True):
        for scale in SCALES:
            try:
                return _build_at_scale(config, scale, model_type, partial=partial)
            except StageFailed as error:
                # The first error is the most informative, unless it only says that the sizes do not fit.
                if complaint is None or complaint.name == "shrink":
                    complaint = error
    assert complaint is not None
    raise complaint from complaint.__cause__


def _build_at_scale(config: Any, scale: Any, model_type: str, *, partial: bool) -> Message:
    import torch
    from transformers import AutoModel

    from accel_platform.workloads.input_discovery import find_inputs
    from accel_platform.workloads.synthetic_inputs import plain_forward
    from accel_platform.workloads.tiny_configs import shrink

    auto: Any = AutoModel
    with _stage("shrink"):
        small = plain_forward(shrink(config, scale))
    with _stage("build"), torch.device("meta"):
        parameters = sum(p.numel() for p in auto.from_config(small, dtype=torch.float32).parameters())
    with _stage("too_large"):
        if parameters > MAX_PARAMETERS:
            raise ArchitectureTooLarge(
                f"{parameters:,} parameters at scale {scale!r}, at most {MAX_PARAMETERS:,} are built"
            )
    with _stage("build"):
        torch.manual_seed(int.from_bytes(model_type.encode()[-4:], "big"))
        model = auto.from_config(small, dtype=torch.float32).eval()
    with _stage("forward"):
        inputs, output = find_inputs(model, lambda given: _run(model, given), partial=partial)
    return {
        "model": model,
        "inputs": inputs,
        "output": output,
        "facts": {"parameters": parameters, "scale": scale, "inputs": sorted(inputs)},
    }


def _run(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the forward pass's tensors by their path in the output, seeded so that random layers repeat."""
    import torch
    from transformers.exporters.utils import get_leaf_tensors

    torch.manual_seed(0)
    random.seed(0)
    with torch.no_grad():
        return {name: value.clone() for name, value in get_leaf_tensors(model(**inputs)).items()}


def _check_on_cpu(found: Message, threads: int) -> Message:  # noqa: ARG001 - both kinds of check take the same
    import torch

    values = [value for value in found["output"].values() if value.is_floating_point()]
    with _stage("not_finite"):
        if not values:
            raise NotFinite("the output holds no real numbers")
        if not any(bool(torch.isfinite(value).all()) for value in values):
            raise NotFinite("every output holds values that are not finite")
    return {"status": "ok"}


def _check_on_openvino(found: Message, threads: int) -> Message:
    """Export, compile and run; then compare with the outputs of PyTorch for the same weights and inputs."""
    import copy

    from transformers.exporters.configs import OpenVINOConfig
    from transformers.exporters.exporter_openvino import OpenVINOExporter
    from transformers.exporters.utils import get_leaf_tensors

    from accel_platform.backends.openvino import OpenVINOBackend
    from accel_platform.bench.measure.verification import verify
    from accel_platform.workloads.input_discovery import vary_values

    model = found["model"]
    first = found["inputs"]
    second = vary_values(first, model.config)
    reference = {name: value.numpy() for name, value in found["output"].items()}
    backend = OpenVINOBackend(device="CPU", threads=threads)
    with tempfile.TemporaryDirectory(prefix="accel-coverage-") as folder:
        path = Path(folder) / "model.xml"
        given = copy.deepcopy(first)
        with _stage("export"):
            # The exporter adds what the trace cannot compute from values to the dictionary of inputs.
            exporter: Any = OpenVINOExporter
            exported = exporter().export(model, given, config=OpenVINOConfig(dynamic=False, stateful=False))
            _name_ports(exported.program.inputs, get_leaf_tensors(given))
            _name_ports(exported.program.outputs, reference)
            OpenVINOExporter.save_program(exported.program, path)
        with _stage("compile"):
            backend.load(path, precision="float32")
            backend.compile(_arrays(given))
        with _stage("run"):
            computed = []
            for inputs in (second, first):
                backend.bind(_arrays({**given, **{k: v for k, v in inputs.items() if k in given}}))
                backend.run()
                computed.append(backend.outputs())
        backend.close()
    other, outputs = computed
    verdict = verify(outputs, other, reference, precision="float32")
    return {
        "status": "ok" if verdict.passed else "failed",
        "failure_class": None if verdict.passed else "wrong_output",
        "reason": verdict.reason,
        "relative_error": verdict.relative_error,
        "max_abs_error": verdict.max_abs_error,
        "tolerance": verdict.tolerance,
    }


def _name_ports(ports: Any, names: Iterable[str]) -> None:
    """Give each port its known name; an input that shares an output's name is prefixed with `input.`."""
    known = set(names)
    for port in ports:
        found = {name for name in port.get_names() if name.removeprefix("input.").removeprefix("output.") in known}
        if found:
            port.get_tensor().set_names({min(found, key=len).removeprefix("output.")})


def _arrays(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs by port name, with and without the `input.` that sets some apart from outputs."""
    from transformers.exporters.utils import get_leaf_tensors

    arrays = {name: value.numpy() for name, value in get_leaf_tensors(inputs).items()}
    return {**arrays, **{f"input.{name}": value for name, value in arrays.items()}}


if __name__ == "__main__":
    serve(check_job)
