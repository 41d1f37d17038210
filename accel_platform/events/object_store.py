"""Store of segments under a prefix of an object storage: S3, Google Cloud Storage or Azure Blob Storage."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import LogUnavailable, NotFound
from accel_platform.events.segments import DEFAULT_NAME, Blob


@dataclass(frozen=True)
class Provider:
    """Words and environment variables of one kind of object storage, for messages."""

    place: str
    container: str
    endpoint: str
    """Variable that names another server than the provider's own."""
    credentials: str
    rights: str


_AZURE = Provider(
    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX or az://CONTAINER/PREFIX",
    "container",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "the role Storage Blob Data Contributor",
)
PROVIDERS = {
    "s3": Provider(
        "s3://BUCKET/PREFIX",
        "bucket",
        "AWS_ENDPOINT_URL",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "s3:ListBucket and s3:GetObject, PutObject, DeleteObject",
    ),
    "gs": Provider(
        "gs://BUCKET/PREFIX",
        "bucket",
        "GOOGLE_BASE_URL",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "the role Storage Object Admin",
    ),
    "az": _AZURE,
    "abfss": _AZURE,
}
"""Providers by the scheme of their URLs."""


class ObjectStoreBlobs:
    """Blobs as objects that are written only where there is none. They never change, so reads are cached locally.

    `patience_s` bounds the wait for a server that does not answer, retries included. Large uploads get more time.
    """

    def __init__(self, url: str, cache: Path, *, patience_s: float = 20.0, called: str = DEFAULT_NAME) -> None:
        self.location = url
        self._provider = PROVIDERS[url.partition("://")[0]]
        self._called = called
        self._cache = cache
        self._patience_s = patience_s
        # Retries begin within the first two fifths of the time, and none waits longer than the other three.
        self._store = self._connect(0.6 * patience_s, max_retries=3)
        self._writers: dict[float, ObjectStore] = {}

    def publish(self, key: str, data: bytes) -> bool:
        failed: BaseException | None = None
        for share in _ATTEMPTS:
            if failed is not None:
                time.sleep(_PAUSE * self._patience_s)
            try:
                self._writer(share, len(data)).put(key, data, mode="create")
            except AlreadyExistsError as error:
                if _status_of(error) != _CONFLICT or _TAKEN in str(error):
                    # An earlier attempt whose answer got lost may have stored this very object.
                    return failed is not None and self._holds(key, data)
                failed = error
            except _FAULTS as error:
                if not _may_pass(error):
                    raise self._unavailable("written", error) from error
                failed = error
            else:
                return True
        assert failed is not None, "every attempt returns, raises or fails"
        raise self._unavailable("written", failed) from failed

    def require_writable(self, prefix: str) -> None:
        """Do nothing, because only an attempt to write shows whether it is allowed."""

    def keys(self, prefix: str) -> set[str]:
        return set(self.blobs(prefix))

    def local_path(self, key: str) -> Path:
        path = self._cache / key
        if not path.exists():
            data = self._fetch(key)
            try:
                make_directory(path.parent)
                write_durably(path, data)
            except OSError as error:
                raise LogUnavailable(
                    f"{key} of {self.location} cannot be kept in {self._cache}: {error.strerror}. "
                    "Free some space there, or use another home directory."
                ) from error
        return path

    def local_paths(self, keys: Collection[str]) -> list[Path]:
        with ThreadPoolExecutor(_FETCHES_AT_ONCE) as pool:
            return list(pool.map(self.local_path, keys))

    def drop_copy(self, key: str) -> None:
        (self._cache / key).unlink(missing_ok=True)

    def blobs(self, prefix: str) -> dict[str, Blob]:
        try:
            listed = self._store.list_with_delimiter(f"{prefix}/")
        except _FAULTS as error:
            raise self._unavailable("listed", error) from error
        return {
            entry["path"].rsplit("/", 1)[-1]: Blob(entry["size"], entry["last_modified"].timestamp())
            for entry in listed["objects"]
        }

    def move(self, key: str, to: str) -> None:
        self.drop_copy(key)
        self.drop_copy(to)
        try:
            self._store.copy(key, to)
        except _FAULTS as error:
            if _is_absent(error):
                return
            raise self._unavailable("written", error) from error
        self.remove(key)

    def remove(self, *keys: str) -> None:
        for key in keys:
            self.drop_copy(key)
        try:
            # One request for each thousand of several keys, which is an error of its own where there are none.
            if keys:
                self._store.delete(keys[0] if len(keys) == 1 else list(keys))
        except _FAULTS as error:
            if not _is_absent(error):
                raise self._unavailable("written", error) from error

    def _writer(self, share: float, size: int) -> ObjectStore:
        """Return a client for one attempt to write `size` bytes, cached because making one takes 10 ms."""
        timeout_s = share * self._patience_s + size // _SLOWEST_UPLOAD_BYTES_PER_S
        if timeout_s not in self._writers:
            self._writers[timeout_s] = self._connect(timeout_s, max_retries=0)
        return self._writers[timeout_s]

    def _connect(self, timeout_s: float, *, max_retries: int) -> ObjectStore:
        # Plain http:// is allowed for an endpoint that names it, because local servers have no TLS.
        provider = self._provider
        endpoint = os.environ.get(provider.endpoint, "")
        if endpoint and not _ENDPOINT.fullmatch(endpoint):  # the client would panic, which is no exception to catch
            raise LogUnavailable(
                f"The {self._called} at {self.location} cannot be opened: {provider.endpoint} {endpoint!r} is no "
                "address. Write it as https://HOST or http://HOST:PORT."
            )
        insecure = endpoint.startswith("http://")
        try:
            return from_url(
                self.location,
                client_options={
                    "allow_http": insecure,
                    "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
                    # For each read, not for the whole, because a large pack on a slow line takes long.
                    "read_timeout": timedelta(seconds=timeout_s),
                    "timeout": timedelta(hours=1),
                },
                retry_config={
                    "max_retries": max_retries,
                    "retry_timeout": timedelta(seconds=0.4 * self._patience_s),
                    "backoff": {"max_backoff": timedelta(seconds=0.1 * self._patience_s)},
                },
            )
        except _FAULTS as error:
            raise LogUnavailable(
                f"The {self._called} at {self.location} cannot be opened: {_first_line(error)}. Write the place as "
                f"{provider.place}."
            ) from error

    def _fetch(self, key: str) -> bytes:
        try:
            return bytes(self._store.get(key).bytes())
        except _FAULTS as error:
            if _is_absent(error):
                raise NotFound(f"No {key} in {self.location}.") from error
            raise self._unavailable("read", error) from error

    def _holds(self, key: str, data: bytes) -> bool:
        """Return whether the object exists with exactly this content."""
        try:
            return self._fetch(key) == data
        except NotFound:
            return False

    def _unavailable(self, what: str, error: BaseException) -> LogUnavailable:
        problem = _problem(error, self._provider, self._patience_s)
        return LogUnavailable(f"The {self._called} at {self.location} cannot be {what}: {problem}")


_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._~%:@\[\]-]+(/[\x21-\x7e]*)?")
_FAULTS = (BaseError, OSError, ValueError)
"""Exceptions of obstore; FileNotFoundError stands for any 404 response."""
_ATTEMPTS = (0.5, 0.2, 0.2)
"""Share of `patience_s` that each attempt to write may take."""
_PAUSE = 0.02
"""Share of `patience_s` between two attempts."""
_SLOWEST_UPLOAD_BYTES_PER_S = 1_000_000
_FETCHES_AT_ONCE = 16
_CONFLICT = 409
"""S3's response to two simultaneous writes of one key; one of the writers must retry."""
_TAKEN = "BlobAlreadyExists"
"""Azure's code for a key that is taken, with the same status."""


def _is_absent(error: BaseException) -> bool:
    """Return whether the object is missing, although its bucket exists."""
    return isinstance(error, FileNotFoundError) and not re.search("NoSuchBucket|ContainerNotFound", str(error))


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a fault, None if there was no response."""
    found = re.search(r"status code: (\d{3})", str(error))
    return int(found[1]) if found else None


def _may_pass(error: BaseException) -> bool:
    """Return whether a retry may help, because the server was unreachable, busy or failing."""
    status = _status_of(error)
    if status is None:
        return "kind: " in str(error)  # only requests without a response have it, not redirects or bad settings
    return status in (408, _CONFLICT, 429) or (status >= 500 and status not in (501, 507))


def _first_line(error: BaseException) -> str:
    """Return a fault's message without the debug output that follows it."""
    return " ".join(str(error).partition("\n\nDebug source")[0].split())[:300].rstrip(".")


def _problem(error: BaseException, provider: Provider, patience_s: float) -> str:
    """Return the meaning of a fault and the action it calls for."""
    text, status = str(error), _status_of(error)
    code = re.search(r"<Code>(\w+)</Code>", text)
    kind = re.search(rf"{_ADDRESSES_OF_CREDENTIALS}|redirect|TimedOut|kind: \w+", text)
    symptom = f"{status} {code[1] if code else ''}".strip() if status else kind[0] if kind else ""
    if re.search(_ADDRESSES_OF_CREDENTIALS, text):  # whatever they answered
        symptom = "no credentials"
    meaning = next(meaning for pattern, meaning in _MEANINGS if re.search(pattern, symptom))
    return meaning.format(
        symptom=symptom,
        endpoint=os.environ.get(provider.endpoint) or "its endpoint",
        provider=provider,
        patience_s=patience_s,
        sentence=_first_line(error),
    )


_ADDRESSES_OF_CREDENTIALS = r"169\.254\.169\.254|metadata\.google\.internal"
"""Addresses from which machines of the providers get credentials."""
_MEANINGS = (
    ("no credentials", "there are no credentials. Set {provider.credentials}."),
    (
        "redirect|^30|AuthorizationHeaderMalformed|IllegalLocationConstraint",
        "the bucket is in another region. Set AWS_REGION to the bucket's region.",
    ),
    (
        "403$|AccessDenied|AllAccessDisabled|PermissionMismatch",
        "the credentials do not allow it ({symptom}). They need {provider.rights}.",
    ),
    (
        "^40[13]|ExpiredToken|InvalidToken",
        "the credentials are refused ({symptom}). Check {provider.credentials}.",
    ),
    ("^404", "there is no such {provider.container} ({symptom}). Create it, or mend ACCEL_LOG_URI."),
    ("^507|Full|Quota", "the store is full ({symptom}). Free some space there and try again."),
    ("^501", "the server has no conditional writes ({symptom}). Use one that knows `If-None-Match`."),
    ("^[45]", "the server answers {symptom}. Try again later; if that stays, ask who runs it."),
    ("Time", "no answer within {patience_s:g} s. Check {provider.endpoint} and the network, and try again."),
    (
        "kind: ",
        "there is no connection to {endpoint}. Check {provider.endpoint}, the network and that the server runs.",
    ),
    ("", "{sentence}. Check {provider.endpoint}: perhaps it is another kind of server."),
)
"""Messages by a pattern of the server's response; the first match is used."""
