"""Timing and verification of training steps: forward, backward and optimizer.

One sample is one step: gradients cleared, forward, backward, AdamW. Steps run in training mode, dropout included. Loss
and gradients are verified before them in evaluation mode, which is repeatable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from accel_platform.backends.base import Arrays, UnsupportedMode
from accel_platform.bench.measure.generation import median_ms
from accel_platform.bench.measure.observation import MeterTarget, observe
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.bench.measure.verification import VerificationResult, verify

if TYPE_CHECKING:
    from accel_platform.workloads.heads import Head

LEARNING_RATE = 1e-4
_MIN_STEPS = 5
"""Minimum number of steps, because fewer show dropout's scatter rather than learning."""
_PRECISIONS = ("float32", "bfloat16")
"""float16 needs its loss scaled, which is another workload; integers have no gradients."""
_IGNORED_LABEL = -100
"""The label that transformers leaves out of a loss."""
_TARGET_PREFIX = "target/"


class TrainingSteps:
    """A model in training on one batch; each step appends one entry to `timings_ns` and `losses`.

    `network` is the model itself or a wrapper that shares its gradients.
    """

    def __init__(self, network: Any, batch: Mapping[str, Any], synchronize: Callable[[], None]) -> None:
        import torch

        self._network, self._batch, self._synchronize = network.train(), batch, synchronize
        self._optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)
        self.timings_ns: list[tuple[int, int, int]] = []
        """Forward, backward, optimizer."""
        self.losses: list[Any] = []
        self.spent_ns = 0

    def run(self) -> None:
        start = perf_counter_ns()
        self._optimizer.zero_grad()
        cleared = perf_counter_ns()
        loss = compute_loss(self._network, self._batch)
        self._synchronize()
        forward = perf_counter_ns()
        loss.backward()
        self._synchronize()
        backward = perf_counter_ns()
        self._optimizer.step()
        self._synchronize()
        end = perf_counter_ns()
        self.spent_ns += end - start
        self.timings_ns.append((forward - cleared, backward - forward, end - backward + cleared - start))
        self.losses.append(loss.detach())


def compute_loss(network: Any, batch: Mapping[str, Any]) -> Any:
    """Return the head's own loss on its labels, or the mean squared distance of each output from its target."""
    from accel_platform.workloads.build import tensors_of

    targets = {
        name.removeprefix(_TARGET_PREFIX): value for name, value in batch.items() if name.startswith(_TARGET_PREFIX)
    }
    output = network(**{name: value for name, value in batch.items() if not name.startswith(_TARGET_PREFIX)})
    if not targets:
        return output.loss
    found = tensors_of(output)
    return sum((found[name] - target).square().mean() for name, target in targets.items()) / len(targets)


def make_batch(model: Any, inputs: Arrays, head: Head, *, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs with labels or targets: next tokens, the tokens themselves, random classes or random values."""
    from accel_platform.workloads.build import outputs_of

    generator = np.random.default_rng(seed)
    if head in ("AutoModelForCausalLM", "AutoModelForMaskedLM"):
        # Causal models shift their labels themselves.
        return {**inputs, "labels": inputs["input_ids"]}
    if head in ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"):
        tokens = inputs["decoder_input_ids"]
        return {**inputs, "labels": np.hstack([tokens[:, 1:], np.full((len(tokens), 1), _IGNORED_LABEL)])}
    if head != "AutoModel":
        rows = len(next(iter(inputs.values())))
        return {**inputs, "labels": generator.integers(0, model.config.num_labels, rows)}
    targets = {}
    for name, value in outputs_of(model, inputs).items():
        if value.dtype.kind == "f":
            targets[f"{_TARGET_PREFIX}{name}"] = generator.standard_normal(value.shape, dtype=np.float32)
    return {**inputs, **targets}


def first_step(model: Any, batch: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return loss and gradient norm per parameter (0 without a gradient), in evaluation mode; no weight changes."""
    model.eval()
    loss = compute_loss(model, batch)
    loss.backward()
    norms = [0.0 if p.grad is None else float(p.grad.float().norm()) for p in model.parameters()]
    model.zero_grad()
    return {"loss": np.array([float(loss.detach())]), "gradient_norms": np.array(norms)}


def measure_training(
    backend: Any, data: Mapping[str, Arrays], sampling: Sampling, *, precision: str, target: MeterTarget
) -> dict[str, Any]:
    """Return one cell's answer: samples, figures, and the verdict on first loss, gradients and the fall of the loss."""
    require_precision(precision)
    freeze_parameters(backend.model, data)
    batch, other = (to_device(backend.model, data[part]) for part in ("input", "other"))
    first, other_step = first_step(backend.model, batch), first_step(backend.model, other)
    verdict = verify_first_step(first, other_step, data, precision=precision)
    steps = TrainingSteps(backend.model, batch, backend.synchronize)
    steps.run()
    observed = observe(steps.run, sampling, target=target)
    return build_answer(backend, steps, observed, verdict)


def verify_first_step(
    first: Any, other_step: Any, data: Mapping[str, Arrays], *, precision: str
) -> VerificationResult | None:
    """Compare the first step with the reference; None without a reference."""
    return verify(first, other_step, data["reference"], precision=precision) if "reference" in data else None


def trainable_mask(model: Any) -> dict[str, npt.NDArray[Any]]:
    """Return which parameters are learned, by the model's own definition, for `freeze_parameters`."""
    return {"parameters/trainable": np.array([p.requires_grad for p in model.parameters()])}


def freeze_parameters(model: Any, data: Mapping[str, Arrays]) -> None:
    """Freeze the fixed parameters, because loading loses that mark (Whisper's encoder positions)."""
    for parameter, trainable in zip(model.parameters(), data["parameters"]["trainable"], strict=True):
        parameter.requires_grad_(bool(trainable))


def require_precision(precision: str) -> None:
    """Raise UnsupportedMode for a precision that training does not support here."""
    if precision not in _PRECISIONS:
        raise UnsupportedMode(f"Training runs in {' and '.join(_PRECISIONS)} only, not {precision}.")


def build_answer(
    backend: Any, steps: TrainingSteps, observed: dict[str, Any], verdict: VerificationResult | None
) -> dict[str, Any]:
    """Return a training cell's answer, from steps of which the first was the cold one."""
    losses = [float(loss) for loss in steps.losses]
    gradients = [p.grad for p in backend.model.parameters() if p.grad is not None]
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    problem = None if finite else "a gradient is not finite"
    problem = problem or loss_problem(losses)
    if verdict is not None and verdict.passed and problem:
        verdict = replace(verdict, passed=False, reason=problem)
    return {
        **observed,
        "compile_ms": None,
        "first_ms": sum(steps.timings_ns[0]) / 1e6,
        "figures": training_figures(steps.timings_ns[-len(observed["samples_ns"]) :]),
        "memory_device_peak_mib": backend.memory_device_peak_mib(),
        "notes": {
            "optimizer": f"AdamW, learning rate {LEARNING_RATE:g}",
            "loss_first": losses[0] if math.isfinite(losses[0]) else None,
            "loss_last": losses[-1] if math.isfinite(losses[-1]) else None,
        },
        "placement": None,
        "precision_share": None,
        "unfounded": problem,
        "confirmed": vars(backend.confirm(steps.losses[-1:])),
        "verdict": vars(verdict) if verdict else None,
    }


def training_figures(timings_ns: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """Return the medians of the parts of a step; None with too few samples."""
    forward, backward, optimizer = zip(*timings_ns, strict=True)
    return {
        "forward_ms": median_ms(forward),
        "backward_ms": median_ms(backward),
        "optimizer_ms": median_ms(optimizer),
    }


def loss_problem(losses: Sequence[float]) -> str | None:
    """Return what is wrong with the losses of steps on one batch, else None. Dropout scatters them, so the last three
    count."""
    if not all(map(math.isfinite, losses)):
        return "the loss is not finite"
    last = sorted(losses[-3:])[len(losses[-3:]) // 2]
    if len(losses) < _MIN_STEPS or last < losses[0]:
        return None
    return f"the loss does not fall: {losses[0]:.4g} at first, {last:.4g} after {len(losses)} steps"


def to_device(model: Any, batch: Arrays) -> dict[str, Any]:
    """Return the arrays as tensors on the model's device, floating-point ones in its precision."""
    import torch

    tensors = {name: torch.from_numpy(array).to(model.device) for name, array in batch.items()}
    return {name: t.to(model.dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def scaling_efficiency(alone_ns: Sequence[int], together_ns: Sequence[int]) -> float | None:
    """Return items/s of all replicas over their number times items/s of one alone.

    Each takes a batch per step, so this is the ratio of step times.
    """
    alone, together = median_ms(alone_ns), median_ms(together_ns)
    return None if alone is None or together is None else alone / together
