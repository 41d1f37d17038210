"""Timing and verification of text generation: greedy decoding with a key-value cache.

PyTorch models are decoded by the loop here; OpenVINO GenAI and ONNX Runtime GenAI have loops of their own. One sample
is the generation of NEW_TOKENS tokens for the whole batch. The end-of-sequence token does not stop it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES, median_ns
from accel_platform.backends.base import Arrays, Generating, UnsupportedMode
from accel_platform.bench.measure.observation import MeterTarget, observe
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.bench.measure.verification import (
    TOLERANCE,
    VerificationResult,
    degenerate_reason,
    require_precision_share,
    verify,
)

NEW_TOKENS = 32
"""Per sequence. Another number would be another workload, so there is one for all."""


class GreedyDecoder:
    """One prompt on one torch device, decoded greedily; each generation appends one row to `timings_ns`.

    A row holds prefill, the choice of the first token, and each later token, all synchronized with the device.
    """

    def __init__(self, model: Any, prompt: Arrays, synchronize: Callable[[], None]) -> None:
        import torch

        self._model, self._synchronize = model, synchronize
        tensors = {name: torch.from_numpy(array).to(model.device) for name, array in prompt.items()}
        self._prompt = {name: t.to(model.dtype) if t.is_floating_point() else t for name, t in tensors.items()}
        # Like transformers' `generate`, compute only the last of the prompt's logits, where the model can.
        supports_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._prefill_options: dict[str, Any] = {"logits_to_keep": 1} if supports_logits_to_keep else {}
        self._cache: dict[str, Any] = {}
        self._step_inputs: dict[str, Any] = {}
        self._mask: Any = None
        self._length = 0
        self.timings_ns: list[tuple[int, ...]] = []
        self.tokens: Any = None
        self.first_logits: Any = None
        self.last_logits: Any = None

    def run(self, forced: Any = None) -> None:
        """Generate from the prompt, or decode the `forced` tokens as if they had been chosen."""
        import torch

        with torch.inference_mode():
            marks = [perf_counter_ns()]
            logits = self.first_logits = self._prefill()
            self._mark(marks)
            chosen: list[Any] = []
            for position in range(NEW_TOKENS):
                if position:
                    logits = self._step(chosen[-1])
                best = logits.argmax(-1, keepdim=True)
                chosen.append(best if forced is None else forced[:, position : position + 1])
                self._mark(marks)
            self.last_logits, self.tokens = logits, torch.cat(chosen, 1)
            self._cache = {}
        self.timings_ns.append(tuple(end - start for start, end in pairwise(marks)))

    def chosen(self) -> npt.NDArray[Any]:
        """Return the tokens of the last generation, of shape (batch, new tokens)."""
        found: npt.NDArray[Any] = self.tokens.cpu().numpy()
        return found

    def logits(self, forced: npt.NDArray[Any] | None = None) -> dict[str, npt.NDArray[np.float32]]:
        """Return first and last logits, of the last generation or of one in which these tokens are chosen."""
        import torch

        if forced is not None:
            self.run(forced=torch.from_numpy(forced).to(self.tokens.device))
        pairs = {"first_logits": self.first_logits, "last_logits": self.last_logits}
        return {name: value.float().cpu().numpy() for name, value in pairs.items()}

    def _mark(self, marks: list[int]) -> None:
        self._synchronize()
        marks.append(perf_counter_ns())

    def _prefill(self) -> Any:
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        output = self._model(**self._prompt, **self._prefill_options, use_cache=True)
        self._keep(output)
        if "decoder_input_ids" in self._prompt:
            encoded = BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state)
            self._step_inputs = {"encoder_outputs": encoded}
            if "attention_mask" in self._prompt:
                self._step_inputs["attention_mask"] = self._prompt["attention_mask"]
        else:
            rows, self._length = self._prompt["input_ids"].shape
            whole = (rows, self._length + NEW_TOKENS)
            self._mask = torch.ones(whole, dtype=torch.int64, device=output.logits.device)
        return output.logits[:, -1]

    def _step(self, token: Any) -> Any:
        if "decoder_input_ids" in self._prompt:
            inputs = {**self._step_inputs, "decoder_input_ids": token}
        else:
            self._length += 1
            inputs = {"input_ids": token, "attention_mask": self._mask[:, : self._length]}
        output = self._model(**inputs, **self._cache, use_cache=True)
        self._keep(output)
        return output.logits[:, -1]

    def _keep(self, output: Any) -> None:
        # transformers 5.24 renamed it, for models' outputs and inputs alike.
        for name in ("cache", "past_key_values"):
            if (kept := getattr(output, name, None)) is not None:
                self._cache = {name: kept}
                return
        raise UnsupportedMode(f"{type(self._model).__name__} keeps no keys and values from token to token.")


class RuntimeDecoder:
    """One prompt that a runtime generates from by itself; to be used as `GreedyDecoder` is."""

    def __init__(self, backend: Generating, prompt: Arrays) -> None:
        if unknown := set(prompt) - {"input_ids", "attention_mask"}:
            raise UnsupportedMode(f"The runtime generates from tokens alone, not from {', '.join(sorted(unknown))}.")
        self._backend, self._prompt = backend, prompt
        self._tokens: npt.NDArray[Any] = np.empty((0, 0), dtype=np.int64)
        self.timings_ns: list[tuple[int, ...]] = []

    def run(self) -> None:
        """Generate from the prompt."""
        found = self._backend.generate(self._prompt, NEW_TOKENS)
        self._tokens = found.tokens
        self.timings_ns.append(found.times_ns)

    def chosen(self) -> npt.NDArray[Any]:
        """Return the tokens of the last generation, of shape (batch, new tokens)."""
        return self._tokens

    def logits(self, forced: npt.NDArray[Any] | None = None) -> dict[str, npt.NDArray[np.float32]]:
        """Return first and last logits as if the last generation's tokens, or these, were chosen."""
        first, last = self._backend.logits(self._prompt, self._tokens if forced is None else forced)
        return {"first_logits": first.astype(np.float32), "last_logits": last.astype(np.float32)}


def make_prompt(inputs: Arrays, config: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of one forward pass as a prompt; an encoder-decoder's decoder begins with its start token
    alone."""
    if "decoder_input_ids" not in inputs:
        return dict(inputs)
    # T5 names no start token and starts with its padding.
    names = ("decoder_start_token_id", "pad_token_id", "bos_token_id")
    start = next((token for name in names if (token := getattr(config, name, None)) is not None), None)
    if start is None:
        raise UnsupportedMode(f"The config of {config.model_type} does not say with which token its decoder starts.")
    rows = len(inputs["decoder_input_ids"])
    return {**inputs, "decoder_input_ids": np.full((rows, 1), start, dtype=np.int64)}


def compute_reference(model: Any, prompt: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return logits of first and last step, greedy tokens, and the margin of each choice, as computed without a cache.

    Tokens are decoded with a cache, then verified by one forward pass without one over prompt and tokens. Raises
    AssertionError where they differ.
    """
    import torch

    greedy = GreedyDecoder(model, prompt, lambda: None)
    greedy.run()
    growing = "decoder_input_ids" if "decoder_input_ids" in prompt else "input_ids"
    whole = {name: torch.from_numpy(array) for name, array in prompt.items()}
    whole[growing] = torch.cat([whole[growing], greedy.tokens[:, :-1]], 1)
    if growing == "input_ids":
        whole["attention_mask"] = torch.ones_like(whole["input_ids"])
    supports_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
    with torch.inference_mode():
        output = model(**whole, use_cache=False, **({"logits_to_keep": NEW_TOKENS} if supports_logits_to_keep else {}))
        logits = output.logits[:, -NEW_TOKENS:]
        best = logits.topk(2).values
    tokens, margins = greedy.tokens.numpy(), (best[..., 0] - best[..., 1]).numpy()
    chosen, first = logits.argmax(-1).numpy(), logits[:, 0].numpy()
    wrong = (tokens != chosen) & (margins > _tolerated_margin(first, TOLERANCE["float32"]))
    if wrong.any():
        raise AssertionError(f"{wrong.sum()} of {tokens.size} tokens differ between decoding with a cache and without")
    return {
        "reference/first_logits": first,
        "reference/last_logits": logits[:, -1].numpy(),
        "greedy/tokens": tokens,
        "greedy/margins": margins,
    }


def measure_generation(
    backend: Any, data: Mapping[str, Arrays], sampling: Sampling, *, precision: str, target: MeterTarget
) -> dict[str, Any]:
    """Return one cell's answer: samples, figures, and the verdict on logits and tokens."""
    # The other prompt shows whether the logits depend on the prompt; it runs first, so it is also the cold run.
    cold, greedy = _decoder(backend, data["other"]), _decoder(backend, data["input"])
    cold.run()
    observed = observe(greedy.run, sampling, target=target)
    peak = backend.memory_device_peak_mib()
    rows = greedy.timings_ns[-len(observed["samples_ns"]) :]
    tokens = greedy.chosen()
    share = require_precision_share(backend, precision) if isinstance(backend, Generating) else None
    found = greedy.logits(data["greedy"]["tokens"] if "reference" in data else None)
    other = cold.logits()
    verdict, notes = None, {}
    if "reference" in data:
        verdict = _verify_tokens(verify(found, other, data["reference"], precision=precision), tokens, data)
        notes = {"equal_tokens_share": float(np.mean(tokens == data["greedy"]["tokens"]))}
    confirmed = backend.confirm() if isinstance(backend, Generating) else backend.confirm([greedy.last_logits])
    return {
        **observed,
        "compile_ms": None,
        "first_ms": sum(cold.timings_ns[0]) / 1e6,
        "figures": generation_figures(rows),
        "memory_device_peak_mib": peak,
        "notes": notes,
        "placement": None,
        "precision_share": share,
        "unfounded": degenerate_reason(found, other),
        "confirmed": vars(confirmed),
        "verdict": vars(verdict) if verdict else None,
    }


def _decoder(backend: Any, prompt: Arrays) -> Any:
    if isinstance(backend, Generating):
        return RuntimeDecoder(backend, prompt)
    backend.compile(prompt)
    return GreedyDecoder(backend.model, prompt, backend.synchronize)


def generation_figures(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the figures of a result from rows of `GreedyDecoder.timings_ns`; a median needs MEDIAN_COUNT samples."""
    later = tuple(time for row in rows for time in row[2:])
    return {
        "output_tokens": len(rows[0]) - 1,
        "prefill_ms": median_ms([row[0] for row in rows]),
        "time_to_first_token_ms": median_ms([row[0] + row[1] for row in rows]),
        "time_per_output_token_ms": median_ms(later),
        "token_samples_ns": later,
    }


def median_ms(samples_ns: Sequence[int]) -> float | None:
    """Return the median in milliseconds; None below MIN_MEDIAN_SAMPLES samples."""
    return median_ns(samples_ns) / 1e6 if len(samples_ns) >= MIN_MEDIAN_SAMPLES else None


def first_wrong_token(
    tokens: npt.NDArray[Any], expected: npt.NDArray[Any], margins: npt.NDArray[Any], excused: float
) -> str | None:
    """Describe the first wrong token; None where all are right.

    A token whose margin is at most `excused` may differ, and so may all after it.
    """
    for row, (found, wanted) in enumerate(zip(tokens, expected, strict=True)):
        different = np.flatnonzero(found != wanted)
        if len(different) and margins[row, different[0]] > excused:
            at = int(different[0])
            return f"token {at + 1} of sequence {row + 1} is {found[at]}, the reference has {wanted[at]}"
    return None


def _verify_tokens(
    verdict: VerificationResult, tokens: npt.NDArray[Any], data: Mapping[str, Arrays]
) -> VerificationResult:
    if not verdict.passed:
        return verdict
    greedy = data["greedy"]
    excused = _tolerated_margin(data["reference"]["first_logits"], verdict.tolerance)
    problem = first_wrong_token(tokens, greedy["tokens"], greedy["margins"], excused)
    return verdict if problem is None else replace(verdict, passed=False, reason=problem)


def _tolerated_margin(logits: npt.NDArray[Any], tolerance: float) -> float:
    """Return the largest margin that two logits, each wrong by the tolerance, can overturn."""
    return 2 * tolerance * float(np.sqrt(np.mean(logits.astype(np.float64) ** 2)))
