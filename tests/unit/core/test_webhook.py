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
from accel_platform.webhook import WebhookRefused, WebhookUnreachable, post_webhook, resend_messages, store_message
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


def test_what_did_not_arrive_is_sent_later_and_once(receiver: Receiver, tmp_path: Path) -> None:
    folder, warned = tmp_path / "unsent", list[str]()

    def send() -> tuple[int, int]:
        return resend_messages(folder, _url(receiver), warn=warned.append)

    assert send() == (0, 0)
    for number in range(3):
        store_message(folder, f"event-{number}", {"text": f"message {number}"})
        os.utime(folder / f"event-{number}.json", (number, number))
    receiver.answers = [503]
    assert send() == (0, 3)
    receiver.answers = [200, 429]
    assert send() == (1, 2)
    assert warned == []
    receiver.answers = [400]  # which holds up no other
    assert send() == (1, 0)
    assert send() == (0, 0)
    sent = [json.loads(body)["text"][-1] for _, body in receiver.received]
    assert sent == ["0", "0", "1", "1", "2"]
    [given_up] = warned
    assert given_up.endswith("refused a message: it answered 400. It is given up: message 1")
    assert SECRET not in f"{given_up}{list(folder.iterdir())}"


@pytest.mark.parametrize("status", [302, 400, 404])
def test_what_is_refused_is_not_repeated(receiver: Receiver, status: int) -> None:
    receiver.answers = [status]
    with pytest.raises(WebhookRefused, match=f"refused a message: it answered {status}"):
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
