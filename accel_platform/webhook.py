"""Notifications to an HTTP endpoint. What does not reach it is kept, and sent later; what it refuses is given up.

A webhook's URL is a secret: it appears in no message and no log.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
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


class WebhookRefused(WebhookUnreachable):
    """The endpoint refused the notification, and would again: 3xx, or 4xx other than 408 and 429."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that refuses redirects, because a redirected POST arrives as a GET without its body."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_webhook(
    url: SecretStr, message: Mapping[str, Any], *, attempts: int = _MAX_ATTEMPTS, pause_s: float = _PAUSE_S
) -> None:
    """POST the message as JSON, in at most so many attempts; a final refusal ends them.

    Raises InvalidInput for a URL other than http(s), WebhookUnreachable with the last reason, WebhookRefused after a
    final refusal.
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
            raise WebhookRefused(f"The webhook of ACCEL_WEBHOOK_URL refused a message: {reason}.")
    raise WebhookUnreachable(
        f"The webhook of ACCEL_WEBHOOK_URL was not reached in {count_of(attempt + 1, 'attempt')}: {reason}."
    )


def store_message(folder: Path, name: str, message: Mapping[str, Any]) -> None:
    """Store a message that the endpoint did not take, for `resend_messages`."""
    make_directory(folder)
    write_durably(folder / f"{name}.json", json.dumps(message), mode=0o600)


def resend_messages(folder: Path, url: SecretStr, *, warn: Callable[[str], object]) -> tuple[int, int]:
    """Send the stored messages, oldest first, and return how many were sent, and how many are left.

    One that is refused is given up with a warning. The first that does not reach the endpoint ends it.
    """
    stored = sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name))
    sent = 0
    for done, path in enumerate(stored):
        message = json.loads(path.read_text(encoding="utf-8"))
        try:
            post_webhook(url, message, attempts=1)
            sent += 1
        except WebhookRefused as error:
            warn(give_up_text(error, message))
        except AccelError:
            return sent, len(stored) - done
        path.unlink()
    return sent, 0


def give_up_text(error: WebhookRefused, message: Mapping[str, Any]) -> str:
    """Return the warning about a refused message, which is in no other place but the log of events."""
    return f"{error} It is given up: {message.get('text')}"


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
