"""Models outside transformers: the user's own modules, saved graphs, and models of timm.

A source is `net.py:Net` (a class or function that returns a module), `net.pt` (TorchScript), `net.pt2` (torch.export),
`net.onnx`, `net.xml` (OpenVINO) or `timm:resnet50`. A specification holds it in `config`, its kind in `architecture`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from accel_platform.errors import InvalidInput, NotFound, one_line
from accel_platform.workloads.input_shapes import parse_shape, shapes_of_graph
from accel_platform.workloads.model_catalog import SOURCE_KINDS, Modality, ModelSpec, SourceKind, find_model

if TYPE_CHECKING:
    from torch import nn

_BY_SUFFIX: dict[str, SourceKind] = {
    ".pt": "torchscript",
    ".torchscript": "torchscript",
    ".pt2": "exported",
    ".onnx": "onnx",
    ".xml": "openvino",
}


class Graph(NamedTuple):
    """A kind of file that no torch can run."""

    name: str
    readers: tuple[str, ...]
    """First words of the backends that read it."""


GRAPHS = {
    "onnx": Graph("an ONNX file", ("onnxruntime", "openvino")),
    "openvino": Graph("an OpenVINO file", ("openvino",)),
}
SEQUENCE_LENGTH = 128
"""Tokens for a text model that says nothing of them."""
_TIMM = "timm:"
_MODULE = re.compile(r"(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)")
_STATE = "state.pt"
_SPEC = "source.json"


def is_source(text: str) -> bool:
    """Return whether a model's name is a source."""
    return text.startswith(_TIMM) or bool(_MODULE.fullmatch(text)) or Path(text).suffix in _BY_SUFFIX


def absolute_source(name: str, folder: Path = Path()) -> str:
    """Return a source with its file's absolute path, so that it holds in any folder; other names stay."""
    if not is_source(name) or name.startswith(_TIMM):
        return name
    return str((folder / Path(name).expanduser()).resolve())


def is_sourced(spec: ModelSpec) -> bool:
    """Return whether the model comes from a source rather than from transformers."""
    return spec.architecture in SOURCE_KINDS


def spec_of_source(
    source: str,
    *,
    folder: Path = Path(),
    model_id: str | None = None,
    inputs: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    modality: Modality | None = None,
    family: str | None = None,
    sequence_length: int | None = None,
    size: str | None = None,
) -> ModelSpec:
    """Return the model of a source; graphs and timm tell their inputs themselves. Nothing is built.

    Parameters
    ----------
    folder
        Base of a relative path.
    inputs
        Shape of one item by the name of the input, such as `3x224x224` or `length:tokens:30522`.
    arguments
        Keyword arguments of the class or function, or of `timm.create_model`.

    Raises NotFound for a file or a timm model that does not exist, InvalidInput for anything else that is wrong.
    """
    kind, path, name = _parse(source, folder)
    if arguments and kind not in ("module", "timm"):
        raise InvalidInput(f"{source} takes no arguments: they belong to a class, a function or a model of timm.")
    config: dict[str, Any] = {"arguments": dict(arguments)} if arguments else {}
    if path is None:
        config["name"] = name
    else:
        config |= {"source": f"{path}:{name}" if name else str(path), "sha256": _digest(path)}
    shapes = dict(inputs) if inputs else _find_shapes(source, kind, path, name, arguments or {})
    parsed = {key: parse_shape(key, text) for key, text in shapes.items()}
    config["inputs"] = shapes
    reads_length = any("length" in shape.dimensions for shape in parsed.values())
    if sequence_length is not None and not reads_length:
        raise InvalidInput(f"{source} reads nothing of variable length: leave out sequence_length.")
    return ModelSpec(
        model_id=model_id or usual_id(source),
        architecture=kind,
        family=family or (re.split(r"[\d_]", name)[0] if kind == "timm" else model_id or usual_id(source)),
        modality=modality or _modality([(shape.kind, len(shape.dimensions)) for shape in parsed.values()]),
        aliases=() if path is None else (f"{path.name}:{name}" if name else path.name,),
        config=config,
        sequence_length=(sequence_length or SEQUENCE_LENGTH) if reads_length else None,
        size=size,
    )


def _find_shapes(
    source: str, kind: SourceKind, path: Path | None, name: str, arguments: Mapping[str, Any]
) -> Mapping[str, str]:
    """Return the shapes that a graph or timm states of its inputs. Raises InvalidInput where nothing states them."""
    shapes = _timm_shapes(name, arguments) if path is None else shapes_of_graph(path, kind)
    if not shapes:
        raise InvalidInput(
            f"Nothing says what {source} reads: state the shape of one item of each input, by --input or as `inputs` "
            "in a models file, such as x=3x224x224 (numbers), ids=length:tokens:30522 (ids below 30522) or "
            "mask=length:mask (ones)."
        )
    return shapes


def reread_source(spec: ModelSpec) -> ModelSpec:
    """Return the specification with its file as it is now. Raises NotFound where that is gone."""
    config = spec.config
    return spec_of_source(
        config["source"] if "source" in config else _TIMM + config["name"],
        model_id=spec.model_id,
        inputs=config["inputs"],
        arguments=config.get("arguments"),
        modality=spec.modality,
        family=spec.family,
        sequence_length=spec.sequence_length,
        size=spec.size,
    )


def usual_id(source: str) -> str:
    """Return the name of a model whose user gives it none, other than any of the catalog's."""
    if source.startswith(_TIMM):
        return source.replace(":", "-")
    module = _MODULE.fullmatch(source)
    path = Path(module["path"] if module else source)
    short, long = (module["name"], f"{path.stem}.{module['name']}") if module else (path.stem, path.name)
    return short if find_model(short) is None else long


def runs_on(spec: ModelSpec, backend: str) -> bool:
    """Return whether the backend can read the model at all."""
    graph = GRAPHS.get(spec.architecture)
    return graph is None or backend.startswith(graph.readers)


def build_source(spec: ModelSpec, seed: int) -> nn.Module:
    """Return the model of a source as a module that takes its inputs by name and returns a dictionary of tensors.

    Its code draws from a seeded generator. Raises NotFound where its file is gone or another one than was described,
    and where its code fails.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _wrap(_load_body(spec, torch.device("cpu")), spec)


def meta_source(spec: ModelSpec) -> nn.Module:
    """Return the model of a source without values, to be traced. Raises as `build_source`, InvalidInput for a graph."""
    import torch

    if spec.architecture in GRAPHS:
        raise InvalidInput("a graph has no torch code to trace")
    body = _load_body(spec, torch.device("meta"))
    return _wrap(body if spec.architecture == "torchscript" else body.to("meta"), spec)


def save_source(model: Any, spec: ModelSpec, folder: Path) -> None:
    """Write what `load_source` reads: the specification and the parameters that the code drew or read."""
    import torch

    (folder / _SPEC).write_text(json.dumps(asdict(spec)), encoding="utf-8")
    if spec.architecture in ("module", "timm"):
        torch.save(model.body.state_dict(), folder / _STATE)


def load_source(folder: Path) -> nn.Module | None:
    """Return the model of a folder that `save_source` wrote; None for one that transformers wrote.

    Raises InvalidInput for a graph, which is not torch's to run, and as `build_source`.
    """
    import torch

    if not (folder / _SPEC).is_file():
        return None
    spec = ModelSpec.of_job(json.loads((folder / _SPEC).read_text(encoding="utf-8")))
    body = _load_body(spec, torch.device("cpu"))
    if (folder / _STATE).is_file():
        body.load_state_dict(torch.load(folder / _STATE, weights_only=True))
    return _wrap(body, spec)


def source_file(spec: ModelSpec) -> Path:
    """Return the file of a source. Raises NotFound where it is gone, or has changed since the run was planned."""
    path = Path(re.sub(r"(?<=\.py):\w+$", "", spec.config["source"]))
    if not path.is_file():
        raise NotFound(f"{path}, which holds {spec.model_id}, is not here.")
    if _digest(path) != spec.config["sha256"]:
        raise NotFound(f"{path} has changed since {spec.model_id} was described: measure it again.")
    return path


def _parse(source: str, folder: Path) -> tuple[SourceKind, Path | None, str]:
    """Return kind, file and the name in it. Raises NotFound."""
    if source.startswith(_TIMM):
        return "timm", None, source.removeprefix(_TIMM)
    module = _MODULE.fullmatch(source)
    path = (folder / Path(module["path"] if module else source).expanduser()).resolve()
    if not path.is_file():
        raise NotFound(f"There is no file {path}.")
    if module:
        return "module", path, module["name"]
    if path.suffix not in _BY_SUFFIX:
        raise InvalidInput(f"{source} is no model file: known are {', '.join(_BY_SUFFIX)}, and net.py:Net for code.")
    return _BY_SUFFIX[path.suffix], path, ""


def _modality(read: Sequence[tuple[str, int]]) -> Modality:
    kinds = {kind for kind, _ in read}
    if kinds <= {"tokens", "mask"}:
        return "text"
    if "tokens" in kinds:
        return "multimodal"
    if max(rank for kind, rank in read if kind == "signal") == 3:
        return "vision"
    raise InvalidInput("its inputs do not tell the modality: state text, vision, audio or multimodal in a models file.")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_body(spec: ModelSpec, device: Any) -> Any:
    """Return what the source holds, in evaluation mode; `device` is where TorchScript puts its parameters."""
    import torch

    if spec.architecture in GRAPHS:
        from accel_platform.workloads.graph_reference import GraphReference

        return GraphReference(source_file(spec))
    try:
        # A user's code may print, and end the process as a script does.
        with contextlib.redirect_stdout(sys.stderr):
            if spec.architecture == "timm":
                timm = _import_timm()
                body = timm.create_model(spec.config["name"], **spec.config.get("arguments", {}))
            elif spec.architecture == "torchscript":
                body = _load_script(source_file(spec), device)
            elif spec.architecture == "exported":
                load_program: Any = torch.export.load
                return load_program(source_file(spec)).module()
            else:
                body = _run_code(source_file(spec), spec)
    except NotFound:
        raise
    except (Exception, SystemExit) as error:
        source = spec.config.get("source", "timm")
        raise NotFound(f"{spec.model_id} cannot be loaded from {source}: {one_line(error)}") from error
    return body.eval()


def _load_script(path: Path, device: Any) -> Any:
    import torch

    load: Any = torch.jit.load
    with warnings.catch_warnings():
        # torch wants new files to be written by torch.export; old ones it still reads.
        warnings.simplefilter("ignore", DeprecationWarning)
        return load(path, map_location=device)


def _run_code(path: Path, spec: ModelSpec) -> Any:
    import torch

    name = spec.config["source"].rpartition(":")[2]
    with _importable(path.parent):
        located = importlib.util.spec_from_file_location(path.stem, path)
        assert located is not None
        assert located.loader is not None
        module = importlib.util.module_from_spec(located)
        # Classes of the file look their module up by name.
        sys.modules.setdefault(path.stem, module)
        located.loader.exec_module(module)
        if not hasattr(module, name):
            known = [key for key, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)]
            raise NotFound(f"{path} has no {name!r}; it has {', '.join(known) or 'no class or function'}.")
        made = getattr(module, name)
        body = made if isinstance(made, torch.nn.Module) else made(**spec.config.get("arguments", {}))
    if not isinstance(body, torch.nn.Module):
        raise NotFound(f"{path}:{name} returns {type(body).__name__}, not a torch.nn.Module.")
    return body.float()


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Make files beside the model importable, as they are for a script."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _import_timm() -> Any:
    try:
        return importlib.import_module("timm")
    except Exception as error:  # a torchvision of another build fails in any way
        raise NotFound(
            f"timm cannot be imported here ({one_line(error)}): pip install timm, for your torch."
        ) from error


def _timm_shapes(name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the image of a timm model. Raises NotFound with the closest names."""
    import torch

    timm = _import_timm()
    if not timm.is_model(name):
        close = timm.list_models(f"*{name}*")[:4]
        raise NotFound(f"timm has no model {name!r}." + (f" Did you mean {', '.join(close)}?" if close else ""))
    with torch.device("meta"):
        config = timm.create_model(name, **arguments).pretrained_cfg
    return {"x": "x".join(map(str, config["input_size"]))}


def _wrap(body: Any, spec: ModelSpec) -> nn.Module:
    import torch

    names = tuple(spec.config["inputs"])
    accepted = inspect.signature(body.forward).parameters if spec.architecture in ("module", "timm") else {}
    by_name = all(name in accepted for name in names)

    class Sourced(torch.nn.Module):
        """Model that takes its inputs by name, and names its outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, **inputs: Any) -> dict[str, Any]:
            given = {name: inputs[name] for name in names}
            return dict(_named_tensors(self.body(**given) if by_name else self.body(*given.values())))

        def train(self, mode: bool = True) -> Self:  # noqa: ARG002 - torch's signature
            """Change nothing: what was loaded is in evaluation mode, and an exported program refuses to be asked."""
            return self

    return Sourced()


def _named_tensors(output: Any, prefix: str = "output") -> Iterator[tuple[str, Any]]:
    """Yield the tensors of any output, nested ones too, with a name each."""
    import torch

    if isinstance(output, torch.Tensor):
        yield prefix, output
        return
    items = output.items() if isinstance(output, Mapping) else enumerate(output or ())
    for key, value in items:
        name = key if isinstance(key, str) and prefix == "output" else f"{prefix}_{key}"
        if isinstance(value, torch.Tensor | Mapping | list | tuple):
            yield from _named_tensors(value, name)
