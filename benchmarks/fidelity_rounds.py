"""Two tools side by side, in rounds of fresh processes A B B A, with a watch on who else uses the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accel_platform.bench.measure.contention import MAX_OTHERS_SHARE, measure_contention, read_load_counters

Figure = dict[str, object]


@dataclass(frozen=True)
class Round:
    """One turn A B B A of one figure, and the largest share of the machine that others used in any of the four."""

    ratio: float
    ours: float
    theirs: float
    others: float


Answer = Sequence[float]


def abba(wanted: int, ends_at: float, ours: Callable[[], Answer], theirs: Callable[[], Answer]) -> list[list[Round]]:
    """Return the rounds of each figure of both sides, until `wanted` rounds were calm or time is up."""
    rounds: list[list[Round]] = []
    while sum(turn[0].others <= MAX_OTHERS_SHARE for turn in rounds) < wanted and (
        not rounds or time.monotonic() < ends_at
    ):
        (a, at), (b, bt), (b2, bt2), (a2, at2) = (_watched(side) for side in (ours, theirs, theirs, ours))
        others = max(at, bt, bt2, at2)
        rounds.append(
            [
                Round((x + x2) / (y + y2), min(x, x2), min(y, y2), others)
                for x, x2, y, y2 in zip(a, a2, b, b2, strict=True)
            ]
        )
    return [list(figure) for figure in zip(*rounds, strict=True)]


def _watched(side: Callable[[], Answer]) -> tuple[Answer, float]:
    """Return the answer of a side, and the share of the machine that others used meanwhile."""
    before = read_load_counters()
    answer = side()
    return answer, measure_contention(before, read_load_counters()).others_share


def ratio_figure(what: str, most: float, rounds: Sequence[Round]) -> Figure:
    """Return the median over calm rounds where there are three, else over all; the detail says which."""
    calm = [turn for turn in rounds if turn.others <= MAX_OTHERS_SHARE]
    used = calm if len(calm) >= 3 else rounds
    got = statistics.median(turn.ratio for turn in used) - 1
    # Company only ever slows down: the least of many processes is what each tool says of a machine left alone.
    least = min(turn.ours for turn in rounds) / min(turn.theirs for turn in rounds) - 1
    each = ", ".join(f"{turn.ratio - 1:+.1%} ({turn.others:.0%})" for turn in rounds)
    return {
        "what": what,
        "reach": f"within {most:.0%}",
        "got": f"{got:+.1%}",
        "met": abs(got) <= most,
        "calm_rounds": len(calm),
        "detail": f"median of {'the calm ones of' if used is calm else 'all'} {len(rounds)} rounds A B B A, least of "
        f"ours to least of theirs {least:+.1%}; rounds (share of the machine used by others): {each}",
    }
