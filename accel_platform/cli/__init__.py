"""The `accel` command: one module per noun, put together here. Nothing is computed in this package.

Command modules import only the standard library, typer and `output` at the top and everything else inside the command,
so that `accel --help` stays as fast as typer itself.
"""

from __future__ import annotations

import typer

from accel_platform.cli import (
    bench,
    chart,
    compare,
    db,
    detect,
    evaluate,
    history,
    host,
    keys,
    matrix,
    migrate,
    predictor,
    predictors,
    recommend,
    regress,
    report,
    run,
    trend,
)
from accel_platform.cli.options import ManyValues

app = typer.Typer(
    name="accel",
    help="Measure models on any hardware, keep every result, and ask which hardware to use.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich for its boxes would double the time that --help takes
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("ui")(run.ui)
app.command("detect")(detect.detect)
app.add_typer(bench.app, name="bench")
app.add_typer(host.app, name="host")
app.command("migrate")(migrate.migrate)
app.add_typer(history.app, name="history")
app.add_typer(db.app, name="db")
app.command("matrix", cls=ManyValues)(matrix.matrix)
app.command("chart", cls=ManyValues)(chart.chart)
app.command("report", cls=ManyValues)(report.report)
app.command("compare", cls=ManyValues)(compare.compare)
app.command("trend", cls=ManyValues)(trend.trend)
app.add_typer(regress.app, name="regress")
app.command("train")(predictor.train)
app.add_typer(predictors.app, name="predictor")
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(recommend.predict)
app.command("recommend")(recommend.recommend)
app.command("serve")(predictor.serve)
app.add_typer(keys.app, name="keys")
