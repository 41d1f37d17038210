"""The environment variables of every child: threads, and no network. Nothing is measured here."""

from __future__ import annotations


def child_environment(threads: int) -> dict[str, str]:
    """Threads for libraries that read them as they load; nothing may ask the network or draw progress bars."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONWARNINGS": "ignore",
    }
