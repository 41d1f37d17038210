"""The advisor in service: it follows what is published, one whole pair at a time, and keeps answers within bounds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.errors import NotFound, WarehouseEmpty
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.advisor import advisor as module
from predictor.advisor.advisor import Advisor
from predictor.advisor.answer_cache import AnswerCache, CandidateResult, LRUByteCache
from predictor.data.evidence import Target
from predictor.schemas.requests import RecommendQuery
from predictor.schemas.serving import ServingQuery
from predictor.serving.measured_loads import MeasuredLoad, measured_loads_in
from predictor_world import MODELS, append, measured_grid, result, world

QUERY = RecommendQuery(model="bert-base", batch_size=1)


@contextmanager
def _following(advisor: Advisor) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=advisor.follow, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return world(tmp_path_factory.mktemp("advised"), measured_grid(MODELS[:3]))


def test_an_answer_is_computed_once_and_is_what_recommend_says(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    advisor = Advisor(settings)
    answer = advisor.answer(QUERY)
    assert json.loads(answer) == advisor.recommend(QUERY).model_dump(mode="json")
    # The command line asks another advisor, which has to say the same, byte for byte.
    assert Advisor(settings).answer(QUERY) == answer
    monkeypatch.setattr(module, "recommend_json", lambda *_: b"computed")
    assert advisor.answer(QUERY) == answer
    # The same question in other words is the same question.
    in_other_words = RecommendQuery.model_validate({"batch_size": 1, "model": "bert-base", "mode": "inference"})
    assert advisor.answer(in_other_words) == answer
    assert advisor.answer(QUERY.model_copy(update={"objective": "throughput"})) == b"computed"


@pytest.mark.parametrize(
    "change",
    [
        {"objective": "cost"},
        {"objective": "memory", "hardware": ["cpu", "rocm", "Apple M2 Max", "NVIDIA L4"]},
        {"constraints": {"max_latency_ms": 1e-5}},
        {"constraints": {"max_watts": 75}},
        {"mode": "generation", "model": "gpt2"},
    ],
)
def test_the_json_from_cached_texts_is_that_of_the_answer(settings: Settings, change: dict[str, object]) -> None:
    query = RecommendQuery.model_validate({**QUERY.model_dump(exclude_unset=True), **change})
    advisor = Advisor(settings)
    assert advisor.answer(query) == advisor.recommend(query).model_dump_json().encode()


def test_another_objective_or_limit_changes_no_figure(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    advisor = Advisor(settings)
    first = advisor.recommend(QUERY)
    monkeypatch.setattr("predictor.advisor.answers.estimate_all", lambda *_: pytest.fail("estimated again"))
    again = advisor.recommend(QUERY.model_copy(update={"objective": "memory", "hardware": ["openvino", "cpu"]}))
    figures = {r.hardware: r.model_dump(exclude={"rank", "ranked_by"}) for r in first.recommendations}
    assert {r.hardware: r.model_dump(exclude={"rank", "ranked_by"}) for r in again.recommendations} == {
        name: figures[name] for name in ("cpu", "openvino")
    }


def test_devices_of_ones_own_are_looked_at_anew(settings: Settings) -> None:
    advisor = Advisor(settings)

    def reasons(memory_gib: float) -> list[str]:
        mine = {"name": "Mine", "kind": "gpu", "peak_fp32_tflops": 10, "bandwidth_gb_s": 500, "memory_gib": memory_gib}
        asked = RecommendQuery.model_validate({"model": "bert-base", "hardware": [mine]})
        return [left_out.reason for left_out in advisor.recommend(asked).excluded]

    assert reasons(0.01) != reasons(80.0)


def test_in_a_hurry_nothing_long_is_begun(settings: Settings) -> None:
    advisor = Advisor(settings)
    assert advisor.try_answer(QUERY) is None, "nothing was read yet"
    assert advisor.state()
    assert advisor.try_answer(QUERY) == advisor.answer(QUERY)
    traced = RecommendQuery(model="bert-mini", sequence_length=24, hardware=["cpu"])
    assert advisor.try_answer(traced) is None
    assert advisor.answer(traced) == advisor.try_answer(traced), "what took long is remembered"


def test_what_cannot_be_answered_is_not_kept(settings: Settings) -> None:
    advisor = Advisor(settings)
    unknown = QUERY.model_copy(update={"model": "no-such-model"})
    for _ in range(2):
        with pytest.raises(NotFound):
            advisor.answer(unknown)


def test_what_is_published_comes_into_service_and_old_answers_go(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:3]))
    advisor = Advisor(settings)
    before = json.loads(advisor.answer(QUERY))
    append(settings, [result(MODELS[0], "cpu", 64, provenance="imported")])
    # Only following renews what answers come from: a question never waits for it.
    assert json.loads(advisor.answer(QUERY)) == before
    with _following(advisor):
        _until(lambda: json.loads(advisor.answer(QUERY))["snapshot_id"] != before["snapshot_id"])
        after = json.loads(advisor.answer(QUERY))
    assert after["snapshot_id"] != before["snapshot_id"]
    assert after["recommendations"] == before["recommendations"]


def test_it_begins_to_answer_when_there_is_something_to_answer_from(tmp_path: Path) -> None:
    advisor = Advisor(Settings(home=tmp_path))
    with _following(advisor):
        with pytest.raises(WarehouseEmpty):
            advisor.answer(QUERY)
        world(tmp_path, measured_grid(MODELS[:3]))
        assert json.loads(advisor.answer(QUERY))["recommendations"]


def test_a_warehouse_that_cannot_be_read_leaves_the_snapshot_before_in_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:3]))
    advisor = Advisor(settings)
    answer = advisor.answer(QUERY)
    pointer = settings.warehouse_dir / "CURRENT"
    good = pointer.read_text()
    with _following(advisor):
        pointer.write_text("projection-of-nothing.json")
        _until(lambda: "damaged" in caplog.text)
        time.sleep(3 * module.POLL_INTERVAL_S)
        assert caplog.text.count("damaged") == 1, "said once, not at every look"
        assert advisor.answer(QUERY.model_copy(update={"batch_size": 4}))
        assert advisor.answer(QUERY) == answer
        pointer.write_text(good)
    assert advisor.state().evidence.snapshot_id == json.loads(answer)["snapshot_id"]


def test_what_was_said_is_kept_until_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.advisor.answer_cache.MAX_RESULTS", 3)
    here, there = (Target(name, "pytorch", name) for name in ("cpu", "cuda"))
    said = AnswerCache()
    said.put("one", {here: CandidateResult(cautions=("a",))})
    said.put("one", {there: CandidateResult(cautions=("b",))})
    assert [told.cautions for told in said.get("one").values()] == [("a",), ("b",)]
    said.put("one", {here: CandidateResult(cautions=("c",))})
    for question in ("two", "three"):
        said.put(question, {here: CandidateResult(), there: CandidateResult()})
    assert said.get("one") == {}
    assert said.get("three").keys() == {here, there}


@given(
    most=st.integers(0, 60),
    kept=st.lists(st.tuples(st.sampled_from("abcdef"), st.binary(max_size=30), st.booleans()), max_size=40),
)
def test_kept_answers_stay_within_bounds_and_the_newest_stay(most: int, kept: list[tuple[str, bytes, bool]]) -> None:
    answers = LRUByteCache(most)
    model: dict[str, bytes] = {}
    for key, content, read in kept:
        if read and key in model:
            assert answers.get(key) == model[key]
            model[key] = model.pop(key)
        else:
            answers.put(key, content)
            model.pop(key, None)
            model[key] = content
        while sum(len(k) + len(v) for k, v in model.items()) > most:
            del model[next(iter(model))]
        assert {k: answers.get(k) for k in model} == model
        for k in list(model):  # reading made them newer, in this order
            model[k] = model.pop(k)
        assert all(answers.get(k) is None for k in "abcdef" if k not in model)


def test_loads_are_read_once_however_many_ask_first(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of eight first questions read them, and all took a minute and a half."""
    advisor = Advisor(settings)
    reads: list[Reader] = []

    def read_slowly(reader: Reader) -> list[MeasuredLoad]:
        reads.append(reader)
        time.sleep(0.2)
        return measured_loads_in(reader)

    monkeypatch.setattr(module, "measured_loads_in", read_slowly)
    query = ServingQuery(mode="serving", model="llama-3.1-8b", hardware=["H100 SXM"])
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: advisor.recommend_serving(query), range(4)))
    assert len(reads) == 1
    assert all(answer == answers[0] for answer in answers)
