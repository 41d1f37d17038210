"""`accel serve`: the service alone, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from accel_platform.cli.options import CommonOptions
from accel_platform.cli.output import note, print_json, settings_for

if TYPE_CHECKING:
    from accel_platform.settings import Settings


LogFormat = Literal["text", "json"]


def serve(
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. Addresses other than loopback need API keys (`accel keys create`)."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes any free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Server processes.")] = 1,
    log_format: Annotated[LogFormat, typer.Option(help="text logs problems; json also logs each request.")] = "text",
    *,
    common: CommonOptions,
) -> None:
    """Serve predictions, results and the dashboard over HTTP until Ctrl-C. An empty log gets the knowledge packs."""
    from accel_platform.cli.data.knowledge import adopt_shipped
    from accel_platform.errors import AccelError
    from accel_platform.hardware.catalog import catalog
    from migrations.suspicion.rules import mark_suspicious
    from predictor.service.server import serve as run

    settings, for_machines = settings_for(common.home), common.wants_json
    catalog()  # A price list that cannot be read stops the service here, because requests cannot mend it.
    try:
        adopt_shipped(settings, only_into_empty_log=True)
    except AccelError as error:
        note(f"Serving without the knowledge packs: {error}")
    run(
        settings,
        host,
        port,
        ready=lambda url: print_json({"url": url}) if for_machines else announce(url, settings),
        mark_suspicious=mark_suspicious,
        workers=workers,
        log_format=log_format,
    )


def announce(url: str, settings: Settings) -> None:
    """Print the URL of the service and an example request, with a key where the service asks for one."""
    from accel_platform.api_keys import KeyStore

    key = " -H 'authorization: Bearer KEY'" if KeyStore(settings).all() else ""
    note(f"Serving on {url} (Ctrl-C stops it). Open {url}/dashboard, or ask:")
    body = '{"model": "bert-base-uncased", "batch_size": 1}'
    note(f"  curl -s {url}/recommend{key} -H 'content-type: application/json' -d '{body}'")
