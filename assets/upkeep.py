"""Work at night that makes no asset: measuring the suite, and packing the log's small segments."""

import dagster as dg

from accel_platform.bench.api import run_suite
from assets.resources import Installation


@dg.op(description="Measures what the suite file of ACCEL_SUITE asks for, on this host, and writes its reports.")
def measure_suite(context: dg.OpExecutionContext, accel: Installation) -> None:
    settings = accel.settings
    if settings.suite is None:
        raise dg.Failure(
            "There is no suite: name a file by ACCEL_SUITE. `accel bench suite --create-config` writes one."
        )
    summary = run_suite(settings.suite, home=settings.home, on_progress=context.log.info)
    for hardware, reason in summary.unavailable.items():
        context.log.warning(f"{hardware} is unavailable: {reason}")
    context.log.info(f"run {summary.run_id}: {summary.ok} cells measured, {summary.failed} failed")


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
    measure_suite()


@dg.job(description="Many small segments of the log into one.")
def compaction() -> None:
    pack_log()
