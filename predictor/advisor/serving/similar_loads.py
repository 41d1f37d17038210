"""Measured loads similar to that of a plan, as evidence of a serving answer: the same load, or the nearest ones."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from accel_platform.workloads.kv_cache import Decoder
from predictor.advisor.serving.deployments import DeploymentPlan
from predictor.schemas.responses import Interval
from predictor.schemas.serving import MeasuredNearby
from predictor.serving.loads import Deployment, Load
from predictor.serving.measured_loads import MeasuredLoad, version_key
from predictor.serving.predictor import ServingTimes

_NEAREST = 3


class SimilarLoads:
    """Measured loads of one model in one quantization, indexed by deployment and load."""

    def __init__(self, rows: Sequence[MeasuredLoad], decoder: Decoder, quantization: str) -> None:
        # Models of one shape answer for each other, however long a context each was trained for.
        shape = replace(decoder, context=0.0)
        self._rows = [
            row
            for row in rows
            if row.deployment.quantization == quantization
            and replace(row.deployment.decoder, context=0.0) == shape
            and not row.impossible
        ]
        # Loads by requests of an engine that is answered for by batches alone: the predictor did not learn from them.
        self.devices = {
            row.deployment.device.name
            for row in rows
            if row.deployment.measured_by_requests or row.load.batch or math.isnan(row.first_ms)
        }
        """Names of the devices on which a load was measured that the answers may follow from, of any model."""
        self._cache_bytes = [row.deployment.cache_bytes for row in self._rows]
        self._same: dict[tuple[object, ...], list[MeasuredLoad]] = {}
        for row in self._rows:
            if not row.load.batch and not math.isnan(row.first_ms) and not row.slot_wait_ms:
                self._same.setdefault(_identity(row.deployment, row.load), []).append(row)

    def times(self, plan: DeploymentPlan) -> ServingTimes | None:
        """Return the medians of the very load of a deployment; None where nobody measured it.

        They are of the deployment's version of the engine, else of the newest that the load was measured with.
        Measurements of others count only where it was not measured here.
        """
        rows = self._same.get(_identity(plan.deployment, plan.load), ())
        version = plan.deployment.engine_version
        if version is None:
            rows = [row for row in rows if not row.from_pack] or rows
            versions = {row.deployment.engine_version for row in rows}
            version = max(versions, key=lambda each: version_key(each or ""), default=None)
        same = [row for row in rows if row.deployment.engine_version == version]
        if not same:
            return None
        return ServingTimes(
            Interval(p50=float(np.median([row.first_ms for row in same]))),
            Interval(p50=float(np.median([row.token_ms for row in same]))),
            version,
        )

    def nearest(self, plan: DeploymentPlan) -> list[MeasuredNearby]:
        """Return the measured loads nearest to that of a plan, the nearest first.

        None are returned for disaggregated serving, of which no loads are in a log.
        """
        deployment, load = plan.deployment, plan.load
        if deployment.prompts is not None:
            return []
        cache_bytes = deployment.cache_bytes
        distances = (
            _distance(row, deployment, load, row_bytes != cache_bytes)
            for row, row_bytes in zip(self._rows, self._cache_bytes, strict=True)
        )
        ranked = zip(distances, (row.event_id for row in self._rows), self._rows, strict=True)
        found = heapq.nsmallest(_NEAREST, ranked, key=lambda each: each[:2])
        return [_nearby(row) for *_, row in found]


def _identity(deployment: Deployment, load: Load) -> tuple[object, ...]:
    """Return the key in which two equal loads of one model agree."""
    return (
        deployment.device.name,
        deployment.engine,
        deployment.devices,
        deployment.attention_copies,
        deployment.stages,
        deployment.prompts,
        deployment.cache_bytes,
        load.users,
        load.input_tokens,
        load.output_tokens,
        load.cached_share,
    )


def _distance(row: MeasuredLoad, deployment: Deployment, load: Load, other_cache: bool) -> float:
    """Return how much a measured load differs from a queried one.

    It is the sum of absolute logs of the ratios of users, tokens and devices. Another device adds 2, another engine 1.
    """
    # Devices are mostly the same objects, whose figures need no comparison then.
    theirs, had = row.deployment, row.load
    return (
        abs(math.log(had.users / load.users))
        + abs(math.log(had.input_tokens / load.input_tokens))
        + abs(math.log(had.output_tokens / load.output_tokens))
        + abs(math.log(theirs.devices / deployment.devices))
        + (theirs.engine != deployment.engine)
        + (deployment.engine_version is not None and theirs.engine_version != deployment.engine_version)
        + 2 * (theirs.device is not deployment.device and theirs.device != deployment.device)
        + 2 * (had.batch != load.batch or math.isnan(row.first_ms))
        + (theirs.attention_copies != deployment.attention_copies)
        + other_cache
        + abs(had.cached_share - load.cached_share)
    )


def _nearby(row: MeasuredLoad) -> MeasuredNearby:
    deployment, load = row.deployment, row.load
    return MeasuredNearby(
        event_id=row.event_id,
        model=row.model,
        device=deployment.device.name,
        devices=deployment.devices,
        engine=deployment.engine,
        engine_version=deployment.engine_version,
        quantization=deployment.quantization,
        users=round(load.users),
        input_tokens=round(load.input_tokens),
        output_tokens=round(load.output_tokens),
        batch=load.batch,
        first_token_ms=None if math.isnan(row.first_ms) else row.first_ms,
        slot_wait_ms=None if math.isnan(row.first_ms) else row.slot_wait_ms or None,
        output_token_ms=row.token_ms,
    )
