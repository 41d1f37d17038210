"""Options of what to measure and how, in groups that give fields of a benchmark's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.options import SEVERAL, parse_batch_sizes, split_words

ModelSet = Annotated[str | None, typer.Option("--set", help="A named set of models.", show_default="small, or custom")]
Effort = Annotated[str, typer.Option("--effort", help="How thorough: quick, standard or thorough.")]
MissingHere = Annotated[bool, typer.Option("--missing", help="Only cells without a result of this host.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Label to find the run by, such as commit=abc; repeatable."),
]


@dataclass(frozen=True)
class OwnModelOptions:
    """Models to measure here, among them the user's own with their inputs and weights."""

    models: Annotated[
        str | None,
        typer.Option(
            metavar=SEVERAL, help="Models: keys, aliases, hub ids, or your own: net.py:Net, net.onnx, timm:resnet50."
        ),
    ] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=SHAPE",
            help="What your own model reads, without the batch: x=3x224x224, ids=length:tokens:30522; repeatable.",
        ),
    ] = None
    set_: ModelSet = None
    models_file: Annotated[Path | None, typer.Option(help="JSON file with your own models, as the set custom.")] = None
    weights: Annotated[
        str | None,
        typer.Option(help='Real weights: a folder or hub id, or as JSON {"model": "folder or hub id"}.'),
    ] = None

    def config(self) -> dict[str, Any]:
        """Return the fields of the configuration. Raises InvalidInput."""
        names = split_words(self.models) if self.models is not None else None
        return {
            "models": _with_inputs(names, self.inputs),
            "set": self.set_,
            "models_file": str(self.models_file) if self.models_file is not None else None,
            "weights": _weights(self.weights, names, self.models_file),
        }


@dataclass(frozen=True)
class CellOptions:
    """Batch sizes, lengths and modes, each combination of which is measured."""

    batch_sizes: Annotated[str, typer.Option(metavar=SEVERAL, help="Batch sizes.")] = "1,4"
    sequence_length: Annotated[int | None, typer.Option(help="Tokens per text.", show_default="each model's own")] = (
        None
    )
    mode: Annotated[str, typer.Option(metavar=SEVERAL, help="inference, generation, training.")] = "inference"

    def config(self) -> dict[str, Any]:
        """Return the fields of the configuration. Raises InvalidInput."""
        from accel_platform.bench.plan.support import resolve_mode

        return {
            "batch_sizes": parse_batch_sizes(self.batch_sizes),
            "sequence_lengths": [self.sequence_length] if self.sequence_length is not None else None,
            "modes": [resolve_mode(word) for word in split_words(self.mode)],
        }


@dataclass(frozen=True)
class SampleOptions:
    """Number of samples, by effort or stated."""

    effort: Effort = "standard"
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Runs before the samples, at least.", show_default="by effort")
    ] = None
    iterations: Annotated[int | None, typer.Option(min=1, help="Samples, at least.", show_default="by effort")] = None

    def config(self) -> dict[str, Any]:
        """Return the fields of the configuration."""
        return {
            "effort": self.effort,
            "warmup_iterations": self.warmup,
            "benchmark_iterations": self.iterations,
        }


@dataclass(frozen=True)
class WorkOptions:
    """Parts of the work on each cell."""

    verify_only: Annotated[
        bool, typer.Option("--verify-only", help="Compare outputs with the reference; time nothing.")
    ] = False
    benchmark_only: Annotated[
        bool, typer.Option("--benchmark-only", help="Compute no reference; the results are unverified.")
    ] = False
    no_fix: Annotated[bool, typer.Option("--no-fix", help="Do not try fallbacks for cells that fail.")] = False
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Run devices in parallel, one cell per device at a time.")
    ] = False
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile each cell by operator afterwards and write Chrome traces.")
    ] = False

    def config(self) -> dict[str, Any]:
        """Return the fields of the configuration. Raises InvalidInput."""
        from accel_platform.bench.plan.run_options import resolve_work

        return {
            "work": resolve_work(self.verify_only, self.benchmark_only),
            "fix": not self.no_fix,
            "parallel": self.parallel,
            "profile": self.profile,
        }


def _with_inputs(names: list[str] | None, inputs: list[str] | None) -> list[str] | dict[str, Any] | None:
    """Return the models, with the inputs of the one among them that is the user's own. Raises InvalidInput."""
    from accel_platform.errors import InvalidInput
    from accel_platform.workloads.sources import is_source, usual_id

    if not inputs:
        return names
    sources = [name for name in names or () if is_source(name)]
    if len(sources) != 1:
        raise InvalidInput(
            f"--input belongs to one model of your own, such as net.py:Net, in --models; there are {len(sources)}. "
            "Describe several in a models file."
        )
    if wrong := [text for text in inputs if "=" not in text]:
        raise InvalidInput(f"--input: expected NAME=SHAPE such as x=3x224x224, got {wrong[0]!r}.")
    shapes = dict(text.split("=", 1) for text in inputs)
    own = {usual_id(sources[0]): {"source": sources[0], "inputs": shapes}}
    return {**{name: {"name": name} for name in names or () if name not in sources}, **own}


def _weights(text: str | None, models: list[str] | None, models_file: Path | None) -> dict[str, str]:
    """Return the weight source of each model, from one source or a JSON object (inline or in a file)."""
    import json

    from accel_platform.errors import InvalidInput
    from accel_platform.strict_json import read_object
    from accel_platform.workloads.custom_models import read_models

    if text is None:
        return {}
    path = Path(text)
    if not text.lstrip().startswith("{") and not (path.suffix == ".json" and path.is_file()):
        names = models or [*(read_models(models_file) if models_file is not None else ())]
        if len(names) != 1:
            raise InvalidInput("--weights with one source needs one model, in --models; or write it as a JSON object.")
        return {names[0]: text}
    try:
        found = read_object(path)[0] if path.suffix == ".json" else json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--weights is no JSON object: {error.msg} at character {error.pos}.") from error
    if wrong := [name for name, source in found.items() if not isinstance(source, str)]:
        raise InvalidInput(f"--weights: expected a folder or hub id for {wrong[0]}, got {found[wrong[0]]!r}.")
    return found
