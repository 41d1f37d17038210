"""Entry point of a Slurm job: one attempt at a requested benchmark, on the node that Slurm chose.

It imports Pipes and not Dagster, whose storage a compute node need not reach.
"""

from __future__ import annotations

import signal
import sys
from uuid import UUID

from dagster_pipes import open_dagster_pipes

from accel_platform.bench.requests.lifecycle import close
from accel_platform.errors import AccelError
from accel_platform.events import EventLog
from accel_platform.requested_benchmarks import measure_within_limits, open_attempt
from accel_platform.settings import Settings


def main() -> None:
    """Measure the attempt that the job was submitted for, and close its request with the outcome."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `scancel`: end the measuring children, too
    settings = Settings()
    log = EventLog.open(settings)
    with open_dagster_pipes() as pipes:
        request_id, attempt = UUID(pipes.extras["request_id"]), int(pipes.extras["attempt"])
        request = open_attempt(log, request_id, attempt)
        if request is None:
            pipes.log.warning(f"Nothing to do: attempt {attempt} at the request is over.")
            return
        close(log, request, *measure_within_limits(request, log, settings, pipes.log.info))


if __name__ == "__main__":
    try:
        main()
    except AccelError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("It was told to end; what was measured is kept.")
