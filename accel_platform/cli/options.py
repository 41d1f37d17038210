"""The filters that commands share, `--model` to `--until`, and options that take several values in a row.

What a filter means is `analysis/query/filters.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from accel_platform.cli.output import Mode

if TYPE_CHECKING:
    from accel_platform.analysis.query.filters import Selection

_Several = list[str] | None
_OPTIONS: dict[str, Any] = {
    "model": Annotated[_Several, typer.Option("--model", help="Only these models or families.", show_default="all")],
    "hardware": Annotated[_Several, typer.Option("--hardware", help="Only these hardware names.", show_default="all")],
    "device": Annotated[str | None, typer.Option("--device", help="Only this device: id or name.")],
    "mode": Annotated[Mode | None, typer.Option("--mode", help="Only this of what models do.")],
    "precision": Annotated[str | None, typer.Option("--precision", help="Only this one, such as float32.")],
    "batch_size": Annotated[int | None, typer.Option("--batch-size", min=1, help="Only this one.")],
    "sequence_length": Annotated[int | None, typer.Option("--sequence-length", min=1, help="Only this one.")],
    "provenance": Annotated[
        str | None, typer.Option("--provenance", help="Only measured, emulated, imported, suspect or simulated.")
    ],
    "since": Annotated[str | None, typer.Option("--since", help="Only what occurred at or after this date or time.")],
    "until": Annotated[str | None, typer.Option("--until", help="Only what occurred before this date or time.")],
}


class ManyValues(TyperCommand):
    """A command whose repeatable options take all values that follow: `--hardware cpu cuda`, or `cpu,cuda`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {
            name for parameter in self.params if getattr(parameter, "multiple", False) for name in parameter.opts
        }
        return super().parse_args(ctx, list(_repeated(args, several)))


def filtered(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the filters as options, but those left out; it receives them as **filters, for `selection`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in _OPTIONS.items()
            if name not in left_out
        ]

        @wraps(command)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            command(*args, **kwargs)

        # Shown in the order of reading: what the command is about, its filters, how it answers.
        about = [p for p in own if p.name not in _ANSWERING]
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=p.KEYWORD_ONLY) for p in (*about, *added, *(p for p in own if p.name in _ANSWERING))]
        )
        return wrapper

    return decorate


_ANSWERING = ("as_of", "output", "format_", "as_json", "home")


def selection(filters: dict[str, Any], **more: Any) -> Selection:
    """The filters as given on the command line. Raises InvalidInput, naming the option."""
    from pydantic import ValidationError

    from accel_platform.analysis.query.filters import Selection
    from accel_platform.errors import InvalidInput

    given = {name: split(value) if isinstance(value, list) else value for name, value in (filters | more).items()}
    try:
        return Selection(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        [first, *_] = error.errors()
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise InvalidInput(f"{option}: {first['msg']}, not {first['input']!r}.") from error


def split(values: Collection[str] | None) -> tuple[str, ...]:
    """Values given one by one, or several with commas between."""
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())


def _repeated(args: list[str], several: Collection[str]) -> Iterable[str]:
    """`--hardware a b` as `--hardware a --hardware b`."""
    option, taken = None, 0
    for index, arg in enumerate(args):
        if arg == "--":
            yield from args[index:]
            return
        if arg.startswith("-"):
            option, taken = (arg if arg in several else None), 0
        elif option is not None:
            taken += 1
            if taken > 1:
                yield option
        yield arg


def words(text: str) -> list[str]:
    """The parts of a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    """The batch sizes of a comma-separated option. Raises InvalidInput."""
    from accel_platform.errors import InvalidInput

    try:
        return [int(word) for word in words(text)]
    except ValueError as error:
        raise InvalidInput(f"Batch sizes must be whole numbers such as 1,4, not {text!r}.") from error
