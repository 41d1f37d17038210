"""A webhook is told, at most so often, and its address is told to nobody."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from accel_platform.errors import InvalidInput
from accel_platform.settings import Settings
from accel_platform.webhook import WebhookUnreachable, post_webhook, resend_messages, store_message
from webhook_receiver import Receiver

SECRET = "T0KEN-of-the-hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def _url(receiver: Receiver) -> SecretStr:
    return SecretStr(f"{receiver.url}/{SECRET}")


def test_the_message_arrives_as_json(receiver: Receiver) -> None:
    post_webhook(_url(receiver), {"text": "it failed", "n": None})
    [(path, body)] = receiver.received
    assert path == f"/{SECRET}"
    assert json.loads(body) == {"text": "it failed", "n": None}


def test_what_may_pass_is_tried_three_times(receiver: Receiver) -> None:
    receiver.answers = [503, 429, 200]
    post_webhook(_url(receiver), {}, pause_s=0)
    assert len(receiver.received) == 3
    receiver.answers = [500] * 9
    with pytest.raises(WebhookUnreachable, match="3 attempts: it answered 500") as raised:
        post_webhook(_url(receiver), {}, pause_s=0)
    assert len(receiver.received) == 6
    assert SECRET not in str(raised.value)


def test_what_was_not_taken_is_sent_later_and_once(receiver: Receiver, tmp_path: Path) -> None:
    folder = tmp_path / "unsent"
    assert resend_messages(folder, _url(receiver)) == (0, 0)
    for number in range(3):
        store_message(folder, f"event-{number}", {"text": f"{number}"})
        os.utime(folder / f"event-{number}.json", (number, number))
    receiver.answers = [400]  # the first, which holds up no other
    assert resend_messages(folder, _url(receiver)) == (0, 3)
    receiver.answers = [200, 500]
    assert resend_messages(folder, _url(receiver)) == (1, 2)
    assert resend_messages(folder, _url(receiver)) == (2, 0)
    assert resend_messages(folder, _url(receiver)) == (0, 0)
    assert [json.loads(body)["text"] for _, body in receiver.received] == ["0", "1", "2", "0", "2"]
    assert SECRET not in str(list(folder.iterdir()))


@pytest.mark.parametrize("status", [302, 400, 404])
def test_what_is_refused_is_not_repeated(receiver: Receiver, status: int) -> None:
    receiver.answers = [status]
    with pytest.raises(WebhookUnreachable, match=f"1 attempt: it answered {status}"):
        post_webhook(_url(receiver), {})
    assert len(receiver.received) == 1


def test_nobody_there(receiver: Receiver) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = SecretStr(f"http://127.0.0.1:{unused.getsockname()[1]}/{SECRET}")
        with pytest.raises(WebhookUnreachable, match="refused") as raised:
            post_webhook(url, {}, pause_s=0)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("url", ["", "hooks/1", f"ftp://host/{SECRET}", f"file:///{SECRET}", f"http://[{SECRET}"])
def test_what_is_no_address_is_said_without_it(url: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        post_webhook(SecretStr(url), {})
    assert SECRET not in str(raised.value)


def test_settings_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_WEBHOOK_URL", f"https://example.org/{SECRET}")
    settings = Settings()
    assert settings.webhook_url is not None
    assert SECRET not in f"{settings!r} {settings} {settings.model_dump_json()}"
