"""Notifications to an HTTP endpoint. What it does not take is kept, and sent later.

A webhook's URL is a secret: it appears in no message and no log.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import AccelError, InvalidInput
from accel_platform.table_io.values import count_of

_MAX_ATTEMPTS = 3
_TIMEOUT_S = 5.0
_PAUSE_S = 1.0
"""Pause before the second attempt; twice that before the third. All attempts together end within 18 s."""
_RETRYABLE_STATUSES = (408, 429)
"""Answers below 500 that may be another one a moment later."""


class WebhookUnreachable(AccelError):
    """The endpoint did not accept the notification."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that refuses redirects, because a redirected POST arrives as a GET without its body."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_webhook(
    url: SecretStr, message: Mapping[str, Any], *, attempts: int = _MAX_ATTEMPTS, pause_s: float = _PAUSE_S
) -> None:
    """POST the message as JSON, in at most so many attempts; a final refusal ends them.

    Raises InvalidInput for a URL other than http(s), WebhookUnreachable with the last reason.
    """
    try:
        parts = urlsplit(url.get_secret_value())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput("ACCEL_WEBHOOK_URL is no http:// or https:// address.")
    body = json.dumps(message).encode()
    reason = ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(pause_s * attempt)
        refused, reason = _post_once(url, body)
        if not reason:
            return
        if refused:
            break
    raise WebhookUnreachable(
        f"The webhook of ACCEL_WEBHOOK_URL was not reached in {count_of(attempt + 1, 'attempt')}: {reason}."
    )


def store_message(folder: Path, name: str, message: Mapping[str, Any]) -> None:
    """Store a message that the endpoint did not take, for `resend_messages`."""
    make_directory(folder)
    write_durably(folder / f"{name}.json", json.dumps(message), mode=0o600)


def resend_messages(folder: Path, url: SecretStr) -> tuple[int, int]:
    """Send the stored messages, oldest first, and return how many were sent, and how many are left.

    The first that is not taken ends it, and is the last next time, so that one that is always refused holds up no
    other.
    """
    stored = sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name))
    for done, path in enumerate(stored):
        try:
            post_webhook(url, json.loads(path.read_text(encoding="utf-8")), attempts=1)
        except AccelError:
            path.touch()
            return done, len(stored) - done
        path.unlink()
    return len(stored), 0


def _post_once(url: SecretStr, body: bytes) -> tuple[bool, str]:
    """Return whether another attempt is useless, and the reason of the failure: empty on success."""
    request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
        url.get_secret_value(), data=body, headers={"Content-Type": "application/json", "User-Agent": "accel-platform"}
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S):
            return False, ""
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500 and error.code not in _RETRYABLE_STATUSES, f"it answered {error.code}"
    except urllib.error.URLError as error:
        known = isinstance(error.reason, OSError) and error.reason.strerror
        return False, str(known or type(error.reason).__name__)
    except (http.client.HTTPException, OSError, ValueError) as error:
        return False, type(error).__name__
