"""Progress of a pipeline: seen by others, changed by its own process alone, and told from one that was killed."""

from __future__ import annotations

import subprocess
import sys

from accel_platform import pipeline_progress
from accel_platform.settings import Settings

_OTHER = """
import sys
from accel_platform import pipeline_progress
from accel_platform.settings import Settings
settings = Settings(home=sys.argv[1])
pipeline_progress.begin(settings, stages=4, stage="Detecting")
pipeline_progress.update(settings, cells_done=3, cells=8, remaining_s=200.0)
print(pipeline_progress.read(settings).message)
"""


def test_a_pipeline_is_followed_from_its_first_stage_to_its_end(settings: Settings) -> None:
    assert pipeline_progress.read(settings) is None
    pipeline_progress.begin(settings, stages=4, stage="Detecting")
    first = pipeline_progress.read(settings)
    assert first is not None
    assert (first.state, first.message) == ("running", "Detecting (step 1 of 4)")
    pipeline_progress.update(settings, stage="Measuring", stage_number=2, cells_done=2, cells=8, remaining_s=200.0)
    second = pipeline_progress.read(settings)
    assert second is not None
    assert second.message == "Measuring this host: 2 of 8 cells, about 3 min left"
    assert second.started_at == first.started_at < second.updated_at
    pipeline_progress.update(settings, state="failed", reason="training: too few results")
    failed = pipeline_progress.read(settings)
    assert failed is not None
    assert failed.message == "The pipeline failed: training: too few results"
    pipeline_progress.finish(settings)
    assert pipeline_progress.read(settings) is None


def test_one_whose_process_is_gone_was_stopped_and_others_cannot_change_it(settings: Settings) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OTHER, str(settings.home)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "Measuring this host: 3 of 8 cells, about 3 min left\n"
    stopped = pipeline_progress.read(settings)
    assert stopped is not None
    assert (stopped.state, stopped.cells_done) == ("stopped", 3)
    pipeline_progress.update(settings, cells_done=8)
    assert pipeline_progress.read(settings) == stopped


def test_a_damaged_file_tells_nothing(settings: Settings) -> None:
    pipeline_progress.begin(settings, stages=4, stage="Detecting")
    (settings.home / "pipeline.json").write_text('{"state": "running"')
    assert pipeline_progress.read(settings) is None
