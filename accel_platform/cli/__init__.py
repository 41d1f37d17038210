"""The `accel` command: registration of its commands, which lie in one module per noun.

Command modules import only typer, `options` and `output` at the top. Heavy imports stay inside the functions, because
`accel --help` must not wait for them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from accel_platform.cli import (
    bench,
    compare,
    db,
    history,
    host,
    keys,
    matrix,
    migrate,
    predictor,
    recommend,
    regress,
    report,
    run,
)
from accel_platform.cli.options import ManyValues

app = typer.Typer(
    name="accel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, because importing rich would double the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
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


app.command("run")(run.run)
app.command("ui")(run.ui)
app.command("detect")(host.detect)
app.add_typer(bench.app, name="bench")
app.add_typer(host.app, name="host")
app.command("migrate")(migrate.migrate)
app.add_typer(history.app, name="history")
app.add_typer(db.app, name="db")
app.command("matrix", cls=ManyValues)(matrix.matrix)
app.command("chart", cls=ManyValues)(report.chart)
app.command("report", cls=ManyValues)(report.report)
app.command("compare", cls=ManyValues)(compare.compare)
app.command("trend", cls=ManyValues)(compare.trend)
app.add_typer(regress.app, name="regress")
app.command("train")(predictor.train)
app.add_typer(predictor.app, name="predictor")
app.command("evaluate")(predictor.evaluate)
app.command("predict")(recommend.predict)
app.command("recommend")(recommend.recommend)
app.command("serve")(predictor.serve)
app.add_typer(keys.app, name="keys")
