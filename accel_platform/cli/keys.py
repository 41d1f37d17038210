"""`accel keys`: who may use the service, where it asks for keys."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.output import (
    FileFormat,
    FormatOption,
    Home,
    Json,
    Output,
    OutputFormat,
    answer,
    chosen,
    note,
    print_json,
    settings_for,
    wants_json,
)

if TYPE_CHECKING:
    from accel_platform.api_keys import ApiKey

app = typer.Typer(help="API keys of the service. Once one was made, every request needs one.", no_args_is_help=True)


class ScopeOption(enum.StrEnum):
    """`keys.Scope` for options."""

    read = "read"
    write = "write"
    admin = "admin"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what it is for; audit events say it.")],
    scope: Annotated[
        ScopeOption, typer.Option(help="What it may do: ask, also write, or everything; each includes the one before.")
    ] = ScopeOption.read,
    days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="How long it works.", show_default="until it is revoked")
    ] = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Make a key. It is printed this once and kept nowhere: only its hash is."""
    from accel_platform import api_keys

    key, secret = api_keys.KeyStore(settings_for(home)).create(name, api_keys.Scope(scope.value), days=days)
    if wants_json(as_json, format_):
        print_json({**_shown(key), "key": secret})
        return
    typer.echo(secret)
    until = f"until {key.expires_at:%Y-%m-%d}" if key.expires_at else "until it is revoked"
    note(f"Key {key.key_id} ({name}, {scope}) works {until}. Keep it now: it is not shown again.")
    note("Send it as `Authorization: Bearer KEY`; in a browser, sign in with it.")


@app.command(name="list")
def list_keys(output: Output = None, format_: FileFormat = None, home: Home = None, as_json: Json = False) -> None:
    """The keys that were made, also those that work no more."""
    from accel_platform.api_keys import KeyStore

    rows = [_shown(key) for key in KeyStore(settings_for(home)).all()]
    nothing = "No key was made yet: `accel keys create NAME` makes one."
    answer(rows, chosen(as_json, format_, output), output, title="KeyStore", empty=nothing)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="A key's id or name.")],
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """End a key, also for a service that runs."""
    from accel_platform.api_keys import KeyStore

    ended = KeyStore(settings_for(home)).revoke(key)
    if wants_json(as_json, format_):
        print_json(_shown(ended))
    else:
        note(f"Key {ended.key_id} ({ended.name}) works no more.")


def _shown(key: ApiKey) -> dict[str, Any]:
    now = datetime.now(UTC)
    state = "revoked" if key.revoked_at else "works" if key.works(now) else "expired"
    return {
        "key_id": key.key_id,
        "name": key.name,
        "scope": key.scope.value,
        "state": state,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }
