"""Work at night that makes no asset: asking for the suite, and packing the log's small segments."""

import dagster as dg

from accel_platform.bench.requests import request_benchmark
from accel_platform.bench.suite import read_config
from assets.resources import Installation


@dg.op(description="Asks for what the suite file of ACCEL_SUITE names, on the hosts that have its hardware.")
def request_suite(context: dg.OpExecutionContext, accel: Installation) -> None:
    settings = accel.settings
    if settings.suite is None:
        raise dg.Failure(
            "There is no suite: name a file by ACCEL_SUITE. `accel bench suite --create-config` writes one."
        )
    for request_id in request_benchmark(read_config(settings.suite), accel.log, by="schedule"):
        context.log.info(f"asked for: {request_id}")


@dg.op(description="Copies small segments of the log into packs; every snapshot stays readable, no segment goes.")
def pack_log(context: dg.OpExecutionContext, accel: Installation) -> None:
    log = accel.log
    packed = log.compact()
    if packed is None:
        context.log.info("Fewer than two segments are in no pack: nothing to do.")
    else:
        context.log.info(f"{len(packed.segments):,} segments are in a pack now")


@dg.job(tags={"accel/line": "suite"}, description="The nightly suite; off without ACCEL_SUITE.")
def suite() -> None:
    request_suite()


@dg.job(description="Many small segments of the log into one.")
def compaction() -> None:
    pack_log()
