"""How the results of one place are judged, from the log alone."""

from __future__ import annotations

import json
from pathlib import Path

from accel_platform.events import EventLog
from migrations.pipeline.importer import migrate
from migrations.suspicion.summary import summarize_verdicts


def web(path: Path, model: str, latency_ms: float, **more: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics = {"inference_time_ms": latency_ms, "throughput_items_per_second": 1000 / latency_ms}
    document = {"model_name": model, "platform": "webgpu", "status": "success", "metrics": metrics, **more}
    path.write_text(json.dumps(document))


def test_each_place_is_judged_by_its_own_results_and_by_what_was_found_across_places(
    tmp_path: Path, log: EventLog
) -> None:
    web(tmp_path / "lab" / "a.json", "gpt2", 21.5)
    web(tmp_path / "lab" / "b.json", "t5-small", 80.25, is_simulation=True)
    web(tmp_path / "lab2" / "a.json", "bert-base-uncased", 80.5)
    for number, model in enumerate(("gpt2", "t5-small", "vit-base")):
        web(tmp_path / "lab3" / f"{number}.json", model, 62.5)
    migrate([tmp_path], log)
    lab, lab2, lab3 = (summarize_verdicts(log, tmp_path / name) for name in ("lab", "lab2", "lab3"))
    assert lab.provenance == {"imported": 1, "simulated": 1}
    assert ("simulation_label", "simulated", 1) in lab.rules
    assert lab2.provenance == {"imported": 1}
    assert lab2.rules == ()
    assert lab3.provenance == {"simulated": 3}
    assert lab3.rules == (("constant_over_archive", "simulated", 3),)
    assert summarize_verdicts(log, tmp_path / "lab" / "a.json").provenance == {"imported": 1}
    assert sum(summarize_verdicts(log, tmp_path).provenance.values()) == 6


def test_an_empty_log_judges_nothing(tmp_path: Path, log: EventLog) -> None:
    assert summarize_verdicts(log, tmp_path).provenance == {}
