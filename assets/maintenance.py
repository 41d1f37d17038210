"""Work at night that makes no asset: asking for the suite, and keeping the disk's use bounded."""

import dagster as dg

from accel_platform.bench.plan.config import read_config
from accel_platform.bench.requests.lifecycle import request_benchmark
from accel_platform.events.compaction import compact
from accel_platform.table_io.values import count_of
from accel_platform.warehouse.disk_use import remove_leftovers
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


@dg.op(description="Packs small segments of the log and removes what is kept twice; every snapshot stays readable.")
def pack_log(context: dg.OpExecutionContext, accel: Installation) -> None:
    # Here, because LightGBM and SciPy would cost every process of Dagster 2 s.
    from predictor.training.promotion import remove_old_predictors

    done = compact(accel.log)
    left_overs = remove_leftovers(accel.settings)
    predictors = remove_old_predictors(accel.settings, accel.log)
    context.log.info(
        f"in a new pack: {count_of(done.packed, 'segment')}; gone: {count_of(done.removed, 'file')} "
        f"that larger ones hold, {len(left_overs)} that killed processes left, "
        f"{count_of(len(predictors), 'old predictor')}"
    )
    if done.damaged:
        raise dg.Failure(f"Damaged and set aside: {', '.join(done.damaged)}. See `accel db validate`.")


@dg.job(tags={"accel/line": "suite"}, description="The nightly suite; off without ACCEL_SUITE.")
def suite() -> None:
    request_suite()


@dg.job(description="Many small segments of the log into few packs; what is kept twice or left over goes.")
def compaction() -> None:
    pack_log()
