"""Options shared by commands: output format, home, filters, groups, and lists of values."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from accel_platform.table_io.kinds import BINARY, Kind, kind_of

if TYPE_CHECKING:
    from accel_platform.analysis.query.filters import Selection


FormatOption = Literal["table", "json"]


PEOPLE: tuple[Kind, ...] = ("table", "markdown", "html")
"""Formats for reading; the other formats hold all columns."""


Mode = Literal["inference", "generation", "training"]
"""Mode option; mirrors `events.types.Mode`, whose import takes long."""


def _config_file(path: Path | None) -> Path | None:
    """Return the config.json of a model's folder; a file as it is."""
    return path / "config.json" if path is not None and path.is_dir() else path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Instead of MODEL: a transformers config.json, or the folder with it.",
        exists=True,
        callback=_config_file,
    ),
]
Home = Annotated[
    Path | None, typer.Option("--home", help="State directory (default: $ACCEL_HOME or ./.accel).", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; the same as --format json.")]
OutputFormat = Annotated[FormatOption, typer.Option("--format", help="Output format.")]
FileFormat = Annotated[
    Kind | None,
    typer.Option("--format", help="Output format.", show_default="by --output's ending, else table"),
]


def output_file(path: Path | None) -> Path | None:
    """Return the file to write, as a parameter's callback. Raises InvalidInput before the work that it is to hold."""
    from accel_platform.atomic_write import require_writable

    if path is not None:
        require_writable(path)
    return path


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        callback=output_file,
        help="Write the answer to this file: .md, .html, .json, .csv, .parquet or .xlsx.",
        show_default=False,
    ),
]


def wants_json(as_json: bool, format_: FormatOption) -> bool:
    """Return True if either option asks for JSON."""
    return as_json or format_ == "json"


@dataclass(frozen=True)
class CommonOptions:
    """Installation that a command works on, and whether it prints a table or JSON."""

    home: Home = None
    as_json: Json = False
    format_: OutputFormat = "table"

    @property
    def wants_json(self) -> bool:
        """True if either option asks for JSON."""
        return wants_json(self.as_json, self.format_)


@dataclass(frozen=True)
class TableOptions:
    """Installation that a table is of, and the file and format that it is written to.

    Raises InvalidInput for two formats, or a binary one without a file.
    """

    output: Output = None
    format_: FileFormat = None
    home: Home = None
    as_json: Json = False

    def __post_init__(self) -> None:
        from accel_platform.errors import InvalidInput

        if self.as_json and self.format_ not in (None, "json"):
            raise InvalidInput(f"--json and --format {self.format_} are two formats: choose one.")
        if self.kind in BINARY and self.output is None:
            raise InvalidInput(f"--format {self.kind} is no text: name the file to write with --output.")

    @property
    def kind(self) -> Kind:
        """Requested format."""
        if self.as_json:
            return "json"
        if self.format_ is not None:
            return self.format_
        return "table" if self.output is None else kind_of(self.output)


AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="SNAPSHOT",
        help="Use the log as of this snapshot (name or id) or date.",
        show_default="now",
    ),
]


def min_change(of: str, *, at_least: float = 0, memory: bool = False) -> Any:
    """Return the option `--min-change`, the smallest `of` to report: a change, a shift.

    `memory` says that the command also looks at memory, of which `thresholds` reports no smaller ones.
    """
    floor = "; of memory 10 or more" if memory else ""
    return typer.Option("--min-change", min=at_least, help=f"Smallest {of} to report, in percent{floor}.")


Branch = Annotated[str | None, typer.Option("--branch", help="Only this branch of commits.", show_default="all")]
NAMES = "NAME…"
"""Metavar of an option that takes a list of names, which may hold commas."""
_Several = list[str] | None
_OPTIONS: dict[str, Any] = {
    "model": Annotated[
        _Several, typer.Option("--model", metavar=NAMES, help="Only these models or families.", show_default="all")
    ],
    "hardware": Annotated[
        _Several, typer.Option("--hardware", metavar=NAMES, help="Only these hardware names.", show_default="all")
    ],
    "device": Annotated[str | None, typer.Option("--device", help="Only this device: id or name.")],
    "backend": Annotated[str | None, typer.Option("--backend", help="Only this runtime, such as onnxruntime.")],
    "mode": Annotated[Mode | None, typer.Option("--mode", help="Only this mode.")],
    "precision": Annotated[str | None, typer.Option("--precision", help="Only this precision, such as float32.")],
    "batch_size": Annotated[int | None, typer.Option("--batch-size", min=1, help="Only this batch size.")],
    "sequence_length": Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="Only this sequence length.")
    ],
    "provenance": Annotated[
        str | None, typer.Option("--provenance", help="Only measured, emulated, imported, suspect or simulated.")
    ],
    "since": Annotated[str | None, typer.Option("--since", help="Only results at or after this date or time.")],
    "until": Annotated[str | None, typer.Option("--until", help="Only results before this date or time.")],
}


_Command = TypeVar("_Command", bound=Callable[..., None])
SEVERAL = "A,B,…"
"""Metavar of a text option that takes several values in every way that `ManyValues` knows."""


class ManyValues(TyperCommand):
    """Command whose options take several values as `--hardware cpu cuda`, `--hardware cpu,cuda`, or given twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeated = {
            name for parameter in self.params if getattr(parameter, "multiple", False) for name in parameter.opts
        }
        joined = {name for parameter in self.params if parameter.metavar == SEVERAL for name in parameter.opts}
        if all(parameter.param_type_name == "option" for parameter in self.params):
            switches = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
            _require_no_value(args, switches)
        return super().parse_args(ctx, _join_values(list(_repeat_options(args, repeated | joined)), joined))


def _require_no_value(args: list[str], switches: set[str]) -> None:
    """Raise InvalidInput where a word follows a switch of a command that takes options only."""
    for name, word in itertools.pairwise(args):
        if name in switches and not word.startswith("-"):
            from accel_platform.errors import InvalidInput

            raise InvalidInput(f"{name} takes no value: leave {word!r} out (--help lists the options).")


class CommandGroup(TyperGroup):
    """Group whose help shows the first sentence of each command whole, on several lines where it needs them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(sys.maxsize)) for name in self.list_commands(ctx)]
            )


class CommandApp(typer.Typer):
    """Commands, a parameter of which may be a dataclass: a group of options, which it receives as one object.

    The fields of such a class are declared as a command's own options are: annotated, with a default.
    """

    def command(self, *args: Any, **settings: Any) -> Callable[[_Command], _Command]:
        register = super().command(*args, **settings)

        def decorate(command: _Command) -> _Command:
            register(_with_option_groups(command))
            return command

        return decorate


def with_filters(*excluded: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the filter options to a command, except the excluded ones. It receives them as **filters."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in _OPTIONS.items()
            if name not in excluded
        ]

        @wraps(command)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            command(*args, **kwargs)

        # Help lists the command's own options first, then filters, then output options.
        last = [p for p in own if p.name in _OUTPUT_OPTIONS or p.annotation is TableOptions]
        about = [p for p in own if p not in last]
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=p.KEYWORD_ONLY) for p in (*about, *added, *last)]
        )
        return wrapper

    return decorate


_OUTPUT_OPTIONS = ("as_of", "output", "format_", "as_json", "home")


def _with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of its groups in their place."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            options += _group_options(parameter.annotation)
        else:
            options.append(parameter)

    @wraps(command)
    def wrapper(**values: Any) -> None:
        grouped = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **grouped)

    wrapper.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return wrapper


def _group_options(group: Any) -> Iterable[inspect.Parameter]:
    annotations = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotations[field.name]
        )


def build_selection(filters: dict[str, Any], **more: Any) -> Selection:
    """Return the filters given on the command line. Raises InvalidInput, naming the option."""
    from pydantic import ValidationError

    from accel_platform.analysis.query.filters import Selection
    from accel_platform.errors import InvalidInput

    given = {
        name: split_values(value) if isinstance(value, list) else value for name, value in (filters | more).items()
    }
    try:
        return Selection(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        from predictor.schemas.messages import problem_message

        [first, *_] = error.errors()
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise InvalidInput(f"{option}: {problem_message(first, first['loc'], [Selection])}.") from error


def split_values(values: Collection[str] | None) -> tuple[str, ...]:
    """Split values given one by one or separated by commas."""
    return tuple(word for value in values or () for word in split_words(value))


def _repeat_options(args: list[str], several: Collection[str]) -> Iterable[str]:
    """Expand `--hardware a b` to `--hardware a --hardware b`."""
    option, values = None, 0
    for index, arg in enumerate(args):
        if arg == "--":
            yield from args[index:]
            return
        if arg.startswith("-"):
            option, values = (arg if arg in several else None), 0
        elif option is not None:
            values += 1
            if values > 1:
                yield option
        yield arg


def _join_values(args: list[str], joined: Collection[str]) -> list[str]:
    """Return `--hardware a --hardware b` as `--hardware a,b`."""
    found: dict[str, list[str]] = {}
    rest = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        option, equals, value = word.partition("=")
        if option not in joined:
            rest.append(word)
        elif equals:
            found.setdefault(option, []).append(value)
        else:
            found.setdefault(option, []).extend(itertools.islice(words, 1))
    given = (word for option, values in found.items() if values for word in (option, ",".join(values)))
    # At the end an option without a value is refused as usual, and takes no other for its value.
    return [*given, *rest, *(option for option, values in found.items() if not values)]


def split_words(text: str) -> list[str]:
    """Split a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_batch_sizes(text: str) -> list[int]:
    """Return the batch sizes of a comma-separated option. Raises InvalidInput."""
    from accel_platform.errors import InvalidInput

    try:
        sizes = [int(word) for word in split_words(text)]
    except ValueError:
        sizes = []
    if not sizes:
        raise InvalidInput(f"Batch sizes must be whole numbers such as 1,4, not {text!r}.")
    return sizes
