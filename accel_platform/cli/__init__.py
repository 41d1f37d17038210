"""The `accel` command: one module per noun, imported when its command is called.

Each kind of work has a package of modules. Add a command here, in the section of `accel --help` where people look.

Command modules import only typer, `options` and `output` at the top. Heavy imports stay inside the functions, because
`accel --help` must not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_HELP_COLUMNS = 100
"""Columns that help uses at most, because longer lines are hard to read."""


@dataclass(frozen=True)
class _Entry:
    """One command in the list of commands."""

    place: str
    """Module and name of its function or group, as in `service.run:ui`."""
    summary: str
    """Description in `accel --help`."""
    many_values: bool = False
    """True if its repeatable options take several values at once."""


_SECTIONS = {
    "Start": {
        "run": _Entry("service.run:run", "Serve at once, and measure this host beside the service.", many_values=True),
        "ui": _Entry("service.run:ui", "Run Dagster's pages and the service together."),
        "status": _Entry("service.status:status", "What is here, how fresh it is, and what to do next."),
    },
    "Measure": {
        "detect": _Entry("measurement.host:detect", "List this host's hardware, with a reason for what is missing."),
        "devices": _Entry("measurement.devices:devices", "List the spec sheet: devices that any query may name."),
        "bench": _Entry("measurement.bench:app", "Measure models on this host's hardware."),
        "host": _Entry("measurement.host:app", "Hosts that measure requested benchmarks."),
    },
    "Choose hardware": {
        "recommend": _Entry("prediction.recommend:recommend", "Rank hardware for a model.", many_values=True),
        "predict": _Entry(
            "prediction.recommend:predict", "Predict the figures of a model on hardware.", many_values=True
        ),
        "serving": _Entry(
            "prediction.serving:serving", "Rank devices to serve a language model under a load.", many_values=True
        ),
        "train": _Entry("prediction.predictor:train", "Train the predictor, and put it into service."),
        "evaluate": _Entry("prediction.predictor:evaluate", "Evaluate predictions of held-out results."),
        "predictor": _Entry("prediction.predictor:app", "List, show and roll back stored predictors."),
    },
    "Look at results": {
        "matrix": _Entry("results.matrix:matrix", "Show which models run on which hardware.", many_values=True),
        "compare": _Entry("results.compare:compare", "Compare hardware, models or snapshots.", many_values=True),
        "trend": _Entry("results.compare:trend", "Follow a figure over time.", many_values=True),
        "chart": _Entry("results.report:chart", "Draw a chart of results.", many_values=True),
        "report": _Entry("results.report:report", "Write a report on results.", many_values=True),
        "regress": _Entry("results.regress:app", "Find performance changes in series of results."),
    },
    "Keep data": {
        "migrate": _Entry("data.migrate:migrate", "Import old benchmark files."),
        "history": _Entry("data.history:app", "Audit imported results, and clean up the files."),
        "knowledge": _Entry("data.knowledge:app", "Packs of public figures: list, add, remove, build."),
        "db": _Entry("data.db:app", "The event log and its tables: query, export, back up."),
        "cache": _Entry("data.cache:app", "Delete what is kept only to be faster."),
    },
    "Serve": {
        "serve": _Entry("service.serve:serve", "Serve answers and the dashboard over HTTP."),
        "keys": _Entry("service.keys:app", "API keys of the service."),
    },
}
"""The commands by the section of `accel --help`."""
_COMMANDS = {name: entry for section in _SECTIONS.values() for name, entry in section.items()}


class _LazyCommands(MutableMapping[str, Any]):
    """The commands by name; a command's module is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name not in _COMMANDS:
            raise KeyError(name)
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError(f"{name} belongs into _COMMANDS.")

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{name} belongs into _COMMANDS.")


@cache
def _load(name: str) -> Any:
    """Return the command of a name, as typer makes it of a function or a group."""
    entry = _COMMANDS[name]
    module, _, attribute = entry.place.partition(":")
    loaded = getattr(import_module(f"accel_platform.cli.{module}"), attribute)
    from accel_platform.cli.options import CommandApp, CommandGroup, ManyValues

    parent = CommandApp(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(loaded, typer.Typer):
        parent.add_typer(loaded, name=name, cls=CommandGroup)
    elif entry.many_values:
        parent.command(name, cls=ManyValues)(loaded)
    else:
        parent.command(name)(loaded)
    return typer.main.get_group(parent).commands[name]


class _LazyGroup(TyperGroup):
    """The group of all commands; its help imports none of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": {}})
        self.commands = _LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer passes it
        return list(_COMMANDS)

    def invoke(self, ctx: Any) -> Any:
        from accel_platform.cli.output import deferring_errors

        try:
            with deferring_errors():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, by which typer reads choices
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer passes it
        widest = max(map(len, _COMMANDS))
        for section, commands in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(widest), entry.summary) for name, entry in commands.items()])


app = typer.Typer(
    name="accel",
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, because importing rich would double the time of --help
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _HELP_COLUMNS},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"accel {version('accel-platform')}")
        raise typer.Exit


@app.callback()
def main_options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure models on any hardware, keep every result, and ask which hardware to use."""
