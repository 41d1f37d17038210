"""The onnxruntime-web release that pages run: version, place and installation.

It lies beside the Python packages of this environment: `accel bench setup-web` installs it once, and it is removed with
the environment.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from accel_platform.errors import AccelError

NAME = "onnxruntime-web"
VERSION = "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""Hash that the registry publishes for this version; an archive with another hash is refused."""
FILES = (
    "package.json",
    # The plain build for wasm; the other suspends WebAssembly to wait for a device, which costs a little everywhere.
    "dist/ort.wasm.min.mjs",
    "dist/ort-wasm-simd-threaded.mjs",
    "dist/ort-wasm-simd-threaded.wasm",
    "dist/ort.webgpu.min.mjs",
    "dist/ort-wasm-simd-threaded.asyncify.mjs",
    "dist/ort-wasm-simd-threaded.asyncify.wasm",
)
"""Files of the release that are run here; the rest of its 150 MB is not unpacked."""


def folder() -> Path:
    """Return the place of the release, installed or not."""
    return Path(sys.prefix) / "share" / "accel-platform" / f"{NAME}-{VERSION}"


def is_installed() -> bool:
    return folder().is_dir()


def install() -> bool:
    """Fetch the release through npm, which knows this machine's registry, and check it; False if it is here already.

    Raises AccelError where npm is missing or fails, or where the bytes are not those that were published.
    """
    if is_installed():
        return False
    npm = shutil.which("npm")
    if npm is None:
        raise AccelError(f"npm is not on this machine; install Node.js, which brings it, to fetch {NAME}.")
    try:
        folder().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder().parent, prefix=".") as part:
            tarball = _fetch(npm, Path(part))
            check(tarball)
            _publish(tarball, Path(part) / "unpacked")
    except OSError as error:
        raise AccelError(f"{NAME} cannot be written to {folder().parent}: {error}") from error
    return True


def check(tarball: Path) -> None:
    """Check that these are the published bytes. Raises AccelError otherwise."""
    with tarball.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha512").digest()
    found = "sha512-" + base64.b64encode(digest).decode()
    if found != INTEGRITY:
        raise AccelError(
            f"The registry gave another {NAME} {VERSION} than was published ({found}, not {INTEGRITY}); nothing was"
            " installed. Ask whoever runs the registry that npm is configured for."
        )


def _fetch(npm: str, into: Path) -> Path:
    command = [npm, "pack", "--silent", "--pack-destination", str(into), f"{NAME}@{VERSION}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=into)
    if answer.returncode != 0:
        words = [line for line in answer.stderr.splitlines() if "npm warn" not in line]
        raise AccelError(f"npm could not fetch {NAME} {VERSION}: {' '.join(words) or answer.returncode}")
    return into / f"{NAME}-{VERSION}.tgz"


def _publish(tarball: Path, unpacked: Path) -> None:
    """Unpack the files that are run; the folder gets its name only once it is whole."""
    with tarfile.open(tarball) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None, "the checked archive holds it"
            (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
            (unpacked / name).write_bytes(member.read())
    try:
        unpacked.rename(folder())
    except OSError:
        # Another process may have installed the same bytes meanwhile.
        if not is_installed():
            raise
