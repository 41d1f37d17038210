"""`accel keys`: API keys of the service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_platform.cli.options import CommandApp, CommonOptions, TableOptions
from accel_platform.cli.output import note, print_json, settings_for, write_answer

if TYPE_CHECKING:
    from accel_platform.api_keys import ApiKey

app = CommandApp(help="API keys of the service. Once one exists, every request needs one.", no_args_is_help=True)


ScopeOption = Literal["read", "write"]
"""Scope option; mirrors `api_keys.Scope`."""


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Its user or purpose; named in audit events.")],
    scope: Annotated[ScopeOption, typer.Option(help="Permissions: read; write includes read.")] = "read",
    days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="Days until it expires.", show_default="never")
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Create a key. It is printed only once; the service stores its hash."""
    from accel_platform import api_keys

    key, secret = api_keys.KeyStore(settings_for(common.home)).create(name, api_keys.Scope(scope), days=days)
    if common.wants_json:
        print_json({**_key_row(key), "key": secret})
        return
    typer.echo(secret)
    until = f"until {key.expires_at:%Y-%m-%d}" if key.expires_at else "until it is revoked"
    note(f"Key {key.key_id} ({name}, {scope}) works {until}. Keep it now: it is not shown again.")
    note("Send it as `Authorization: Bearer KEY`; in a browser, sign in with it.")


@app.command(name="list")
def list_keys(table: TableOptions) -> None:
    """List all keys, including expired and revoked ones."""
    from accel_platform.api_keys import KeyStore

    rows = [_key_row(key) for key in KeyStore(settings_for(table.home)).all()]
    nothing = "No key was made yet: `accel keys create NAME` makes one."
    write_answer(rows, table, title="Keys", empty=nothing)


@app.command()
def revoke(key: Annotated[str, typer.Argument(help="A key's id or name.")], common: CommonOptions) -> None:
    """Revoke a key. A running service rejects it at once."""
    from accel_platform.api_keys import KeyStore

    ended = KeyStore(settings_for(common.home)).revoke(key)
    if common.wants_json:
        print_json(_key_row(ended))
    else:
        note(f"Key {ended.key_id} ({ended.name}) works no more.")


def _key_row(key: ApiKey) -> dict[str, Any]:
    now = datetime.now(UTC)
    state = "revoked" if key.revoked_at else "works" if key.is_active(now) else "expired"
    return {
        "key_id": key.key_id,
        "name": key.name,
        "scope": key.scope.value,
        "state": state,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }
