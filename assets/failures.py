"""Failures of steps: foreseeable ones are shown by Dagster with their message in place of a traceback."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import dagster as dg

from accel_platform.errors import AccelError

_Function = TypeVar("_Function", bound=Callable[..., Any])


class ShortFailure(dg.Failure):
    """Failure whose stored traceback has none of Dagster's frames but the first."""

    def __init__(self, description: str | None, metadata: Mapping[str, Any], *, allow_retries: bool = True) -> None:
        self._text = description
        super().__init__(description, metadata, allow_retries)

    @property
    def description(self) -> str | None:
        """Message. Reading it drops the frames, because Dagster reads it before it stores those it came through."""
        if self.__traceback__ is not None:
            self.__traceback__.tb_next = None
        return self._text

    @description.setter
    def description(self, text: str | None) -> None:
        self._text = text


def explain_failures(function: _Function) -> _Function:
    """Have an AccelError of an asset's, a check's or an op's function end its step as a short failure.

    The failure has the message as its description, and the traceback as a metadata entry.
    """

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        with _as_short_failure():
            return function(*args, **kwargs)

    @functools.wraps(function)
    def steps(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with _as_short_failure():
            yield from function(*args, **kwargs)

    return cast("_Function", steps if inspect.isgeneratorfunction(function) else step)


def reason_of(event: dg.DagsterEvent) -> str:
    """Return the reason of a step's failure in one line: its description, else the error that it raised."""
    failure = event.step_failure_data
    described = failure.user_failure_data.description if failure.user_failure_data is not None else None
    error = failure.error and (failure.error.cause or failure.error)
    if described is None and error is not None:
        _, _, text = error.message.partition(": ")
        described = f"{error.cls_name}: {text}"
    return " ".join((described or str(event.message)).split())


@contextmanager
def _as_short_failure() -> Iterator[None]:
    try:
        yield
    except dg.Failure as failure:
        raise ShortFailure(failure.description, failure.metadata, allow_retries=failure.allow_retries) from None
    except AccelError as error:
        text = "".join(traceback.format_exception(error))
        raise ShortFailure(str(error), {"traceback": dg.MetadataValue.md(f"```\n{text}```")}) from None
