"""Deployments that keep up with their load: with a rate of requests, and with prompts that separate workers compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from accel_platform.table_io.values import rounded
from predictor.advisor.serving.deployments import DeploymentPlan
from predictor.schemas.serving import MAX_USERS, NotServed
from predictor.serving.loads import Deployment, Load
from predictor.serving.predictor import ServingPredictor, ServingTimes


def split_by_rate(
    predictor: ServingPredictor, plans: Sequence[DeploymentPlan], requests_per_s: float
) -> tuple[list[DeploymentPlan], list[NotServed]]:
    """Return the plans that keep up with a request rate, with the requests under way as their users, and the others.

    By Little's law the requests under way are the request rate times the seconds of a request. The latter grow with
    the former, so the equation is solved on a curve of predicted times over 1, 2, 4, ... users.
    """
    curves = _seconds_by_users(predictor, plans)
    kept, excluded = [], []
    for each in plans:
        users = _solve_littles_law(curves[each.deployment], requests_per_s / each.copies)
        if users is not None:
            load = replace(each.load, users=float(max(round(users), 1)))
            kept.append(replace(each, load=load, arriving_per_s=requests_per_s / each.copies))
            continue
        most = each.copies * max(users / seconds for users, seconds in curves[each.deployment])
        reason = f"{rounded(requests_per_s)} requests/s would pile up: it answers {rounded(most, 2)} at most"
        excluded.append(
            NotServed(device=each.deployment.device.name, devices=each.devices, cause="overloaded", reason=reason)
        )
    return kept, excluded


def _seconds_by_users(
    predictor: ServingPredictor, plans: Sequence[DeploymentPlan]
) -> dict[Deployment, list[tuple[float, float]]]:
    """Return for each deployment pairs of users and the seconds of a request, from 1 user to as many as fit."""
    loads = {each.deployment: each.load for each in plans}
    most_users = {each.deployment: min(MAX_USERS, each.fit.max_users) for each in plans}
    points = [
        (deployment, float(users))
        for deployment, most in ((deployment, most_users[deployment]) for deployment in loads)
        for users in np.unique([*2 ** np.arange(math.log2(most)), most])
    ]
    cells = [(deployment, replace(loads[deployment], users=users)) for deployment, users in points]
    times = predictor.predict(cells) if cells else []
    curves: dict[Deployment, list[tuple[float, float]]] = {deployment: [] for deployment in loads}
    for (deployment, users), of_point in zip(points, times, strict=True):
        curves[deployment].append((users, end_to_end_ms(of_point, loads[deployment]) / 1e3))
    return curves


def _solve_littles_law(curve: Sequence[tuple[float, float]], requests_per_s: float) -> float | None:
    """Return the fewest users whose requests end as fast as new ones arrive; None if the curve has no such point.

    `curve` holds pairs of users and the seconds of a request, and is interpolated linearly on logarithmic scales.
    """
    fewer, shorter_s = curve[0]
    for users, seconds in curve:
        if requests_per_s * seconds <= users:
            if users == fewer:
                return users
            slope = math.log(seconds / shorter_s) / math.log(users / fewer)
            return float((requests_per_s * shorter_s / fewer**slope) ** (1 / (1 - slope)))
        fewer, shorter_s = users, seconds
    return None


def split_by_prompt_capacity(
    plans: Sequence[DeploymentPlan], times: Sequence[ServingTimes]
) -> tuple[list[tuple[DeploymentPlan, ServingTimes]], list[NotServed]]:
    """Return the plans with their times, and those whose workers for prompts cannot keep up."""
    in_time, excluded = [], []
    for each, of_each in zip(plans, times, strict=True):
        busy = of_each.prompts_busy
        if busy is None or busy <= 1:
            in_time.append((each, of_each))
            continue
        reason = f"its workers for prompts ({each.prompt_workers}) have {busy:.0%} of the work they can do"
        device = each.deployment.device.name
        excluded.append(NotServed(device=device, devices=each.devices, cause="overloaded", reason=reason))
    return in_time, excluded


def end_to_end_ms(times: ServingTimes, load: Load) -> float:
    """Return the typical time to the last token."""
    return times.first_token_ms.p50 + (load.output_tokens - 1) * times.output_token_ms.p50
