"""Errors meant for people: what went wrong and what to do. Bugs are not AccelErrors and keep their traceback."""

from __future__ import annotations


class AccelError(Exception):
    """A foreseeable failure; its message says what to do. The CLI exits 1, the service answers 4xx or 503."""


class InvalidInput(AccelError):
    """The caller's input cannot be used as it is. The CLI exits 2, the service answers 422."""


class NotFound(AccelError):
    """What was asked for is not there. The service answers 404."""


class Conflict(AccelError):
    """What is asked for cannot be done to what is there as it is now. The service answers 409."""


class Busy(AccelError):
    """Others' questions are being answered: ask again soon. The service answers 503."""


class LogUnavailable(AccelError):
    """The event log cannot be read or written (missing, read-only, full, unreachable)."""


class WarehouseEmpty(AccelError):
    """No projection has been published yet."""
