"""The dashboard's pages, in process: what they show, filters, forms, errors. A browser looks at them in `tests/e2e`."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from pages_world import BEFORE, HOSTILE, PATHS, pages_world

from accel_platform.api_keys import KeyStore, Scope
from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.types import (
    DocumentImported,
    HostObserved,
    MeasuredSeries,
    RegressionFound,
    RunStarted,
    ShiftAccepted,
    ShiftRejected,
    WriteAudited,
)
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from factories import event, result, verification
from predictor.service.app import create_app
from predictor.training.train import train
from predictor_world import CPU, MODELS, devices, verified, world
from predictor_world import result as modelled


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = pages_world(tmp_path_factory.mktemp("pages"))
    train(settings, EventLog.open(settings))
    return settings


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    headers = {"accept": "text/html", "origin": "http://testserver"}
    with TestClient(create_app(settings), raise_server_exceptions=False, headers=headers) as client:
        yield client


@pytest.fixture
def own(settings: Settings, tmp_path: Path) -> Settings:
    """A copy to change: its warehouse is built anew, because the service behind `client` may be writing the other."""
    ignore = shutil.ignore_patterns("warehouse")
    own = settings.model_copy(update={"home": shutil.copytree(settings.home, tmp_path / "home", ignore=ignore)})
    refresh(own)
    return own


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(home=tmp_path)), raise_server_exceptions=False) as client:
        yield client


def page(client: TestClient, path: str, status: int = 200, **more: Any) -> str:
    response = client.get(f"/dashboard{path}", **more)
    assert response.status_code == status, response.text[:2000]
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    text: str = response.text
    assert text.count("<h1>") == 1
    # Nothing that a content security policy of `'self'` would stop, and nothing from elsewhere.
    assert not re.search(r"<script(?! src=\"/dashboard/)|<style| style=| on\w+=\"|(?:src|href)=\"(?!/|#)", text)
    return text


@pytest.mark.parametrize("path", PATHS)
def test_each_page_answers_and_names_its_snapshot(client: TestClient, settings: Settings, path: str) -> None:
    text = page(client, path)
    assert Reader(settings).snapshot_id in text
    assert 'aria-current="page"' in text
    assert HOSTILE not in text
    assert "<script>alert" not in text


@pytest.mark.slow
def test_every_link_of_every_page_leads_somewhere(client: TestClient) -> None:
    found: set[str] = set()
    for path in PATHS:
        hrefs = re.findall(r'href="(/dashboard[^"#]*)', page(client, path))
        # A few of each kind of page.
        kinds: dict[tuple[Any, ...], list[str]] = {}
        for href in (href.replace("&amp;", "&") for href in hrefs):
            bare, _, query = href.partition("?")
            kinds.setdefault((*bare.split("/")[:3], bare.count("/"), *re.findall(r"(\w+)=", query)), []).append(href)
        found |= {href for some in kinds.values() for href in some[:2]}
    assert len(found) > 40
    for href in sorted(found):
        assert client.get(href).status_code == 200, href


def test_the_overview_counts_what_there_is(client: TestClient, settings: Settings) -> None:
    text = page(client, "")
    [row] = Reader(settings).rows("SELECT count(*) AS results FROM results")
    assert f"<b>{row['results']}</b><span>results</span>" in text
    assert re.search(r"is-alert.*<b>1</b><span>open regressions", text)
    assert "unreadable" in text
    assert "+40" in text


def test_the_overview_lists_imports_by_time_though_their_ids_follow_their_content(tmp_path: Path) -> None:
    settings, log = Settings(home=tmp_path), EventLog.open(Settings(home=tmp_path))
    about: dict[str, Any] = {"format": "plain_table", "outcome": "imported", "size_bytes": 1, "records": 1}
    for day, last in ((1, "f"), (3, "0"), (2, "7")):
        entry = DocumentImported(source_path=f"/old/day{day}.csv", content_sha256=last * 64, **about)
        at = datetime(2026, 11, day, tzinfo=UTC)
        log.append([event(entry, run_id=None, event_id=UUID(last * 32), occurred_at=at)])
    log.append([event(result())])
    refresh(settings)
    with TestClient(create_app(settings)) as client:
        assert re.findall(r"day(\d)", page(client, "")) == ["3", "2", "1"]


def test_the_page_of_an_unmeasured_model_says_how_to_measure_it(client: TestClient) -> None:
    assert "`accel bench run --models gpt2-medium`" in page(client, "/models/gpt2-medium", 404)
    assert "Did you mean bert-base" in page(client, "/models/bert-bse", 404)


def test_what_is_left_out_for_one_reason_has_the_suggestion_of_each_hardware(tmp_path: Path) -> None:
    with TestClient(create_app(world(tmp_path))) as untrained:
        text = page(untrained, "/recommend?model=bert-base&precision=bfloat16")
    [together] = [row for row in re.findall(r"<tr>.*?</tr>", text) if "no predictor was trained yet" in row]
    assert [f"--hardware {name} " in together for name in ("cpu", "openvino")] == [True, True]


def test_the_overview_counts_published_figures_apart_and_failures_by_the_rule(tmp_path: Path) -> None:
    settings, log = Settings(home=tmp_path), EventLog.open(Settings(home=tmp_path))
    log.append([event(p) for p in (result(), result(batch_size=2), verification(batch_size=2, passed=False))])
    claim: dict[str, Any] = {"provenance": "imported", "fingerprint": None, "samples_ns": ()}
    claims = [result(latency_mean_ms=1.0, **claim), result(status="failed", reason="no memory", **claim)]
    log.append([event(one, run_id=None) for one in claims])
    shipped = [result(batch_size=size, latency_mean_ms=1.0, **claim) for size in range(1, 97)]
    log.append([event(one, run_id=None, source="pack:timm@1") for one in shipped])
    refresh(settings)
    with TestClient(create_app(settings)) as client:
        text = page(client, "")
        row = r'<tr><th scope="row"><a href="([^"]*)"><span[^>]*>(\w+)</span></a>.*?</th><td class="num">(\d+)</td>'
        rows = re.findall(rf'{row}<td class="num">([^<]*)</td><td class="num">(\d+)</td></tr>', text)
        assert rows == [
            ("/dashboard/results?provenance=imported", "imported", "2", "50%", "1"),
            ("/dashboard/results?provenance=measured", "measured", "2", "50%", "1"),
            ("/dashboard/knowledge", "published", "96", "", "0"),
        ]


def test_the_page_of_a_result_shows_verifications_of_its_own_device_and_processes(tmp_path: Path) -> None:
    settings, log = Settings(home=tmp_path), EventLog.open(Settings(home=tmp_path))
    own, others = result(), ({"device_id": "cpu-other"}, {"processes": 2})
    log.append([event(p) for p in (own, verification(), *(verification(passed=False, **of) for of in others))])
    refresh(settings)
    with TestClient(create_app(settings)) as client:
        [row] = client.get("/results").json()["results"]
        verdicts = [one["passed"] for one in client.get(f"/results/{row['result_id']}").json()["verifications"]]
        shown = page(client, f"/results/{row['result_id']}").partition("Outputs against the reference")[2]
    assert verdicts == [True]
    assert shown.count("<tr><td>") == 1


def test_a_row_of_the_matrix_names_its_shape_and_a_cell_another(tmp_path: Path) -> None:
    settings, log = Settings(home=tmp_path), EventLog.open(Settings(home=tmp_path))
    for of in ({}, {"hardware": "openvino"}, {"hardware": "jax", "precision": "int8", "batch_size": 4}):
        log.append([event(payload) for payload in (result(**of), verification(**of))])
    refresh(settings)
    with TestClient(create_app(settings)) as client:
        heat = page(client, "/matrix?model=bert-base")
        assert "</a><small>float32, batch 1, length 128</small></th>" in heat
        assert re.findall(r'<small class="other">(.*?)</small>', heat) == ["at int8, batch 4, length 128"]
        assert "int8, batch 4, length 128" in page(client, "/matrix/cell?model=bert-base&hardware=jax")
        cells = client.get("/matrix").json()["cells"]
        assert [(cell["hardware"], cell["precision"], cell["batch_size"]) for cell in cells] == [
            ("cpu", "float32", 1), ("jax", "int8", 4), ("openvino", "float32", 1)
        ]  # fmt: skip


def test_hostile_names_are_text_everywhere(client: TestClient, settings: Settings) -> None:
    [row] = Reader(settings).rows("SELECT result_id, model_id FROM results WHERE hardware = 'cuda'")
    assert row["model_id"] == HOSTILE
    for path in (
        f"/models/{quote(HOSTILE, safe='')}", f"/results/{row['result_id']}", f"/events/{row['result_id']}", "/results",
        f"/matrix/cell?model={quote(HOSTILE)}&hardware=cuda", f"/compare?model={quote(HOSTILE)}", "/history",
        "/history?rule=round_time", f"/models?q={quote(HOSTILE)}", f"/recommend?model={quote(HOSTILE)}&batch_size=2",
    ):  # fmt: skip
        response = client.get(f"/dashboard{path}")
        assert response.status_code in (200, 404, 422), path
        assert "&lt;" in response.text
        assert "<script>" not in response.text
        assert '"/onerror' not in response.text


def test_filters_stand_in_the_address_and_hold(client: TestClient) -> None:
    only = page(client, "/models?q=BERT&family=bert&sort=-results")
    assert only.count('<th scope="row"') == 2
    assert 'value="BERT"' in only
    assert 'aria-sort="descending"' in only
    cells = page(client, "/models/bert-base?hardware=openvino&batch_size=4&mode=&precision=")
    table = cells[cells.index("On all hardware") : cells.index(">History<")]
    assert table.count('<th scope="row"') == 1
    assert "latency_ms" in table
    results = page(client, "/results?hardware=cpu&model=bert&status=ok&since=2020-01-01&until=2100-01-01")
    assert results.count('<th scope="row"') == 15
    assert "No result matches" in page(client, "/results?provenance=simulated")
    events = page(client, "/events?type=RegressionFound")
    assert events.count('<th scope="row"') == 1


def test_pages_take_the_filter_names_of_commands_and_routes(client: TestClient, settings: Settings) -> None:
    def models(filters: str) -> list[str]:
        row = r'<tr><th scope="row"[^>]*><a href="/dashboard/models/([^"]*)'
        return re.findall(row, page(client, f"/matrix?{filters}"))

    assert models("model=vit") == ["vit-base"]
    assert models("model=vit&model=bert-base&hardware=openvino") == ["bert-base", "vit-base"]
    assert models("q=vit&mode=inference&precision=float32&batch_size=1") == ["clip-vit-base-patch32", "vit-base"]
    assert 'name="precision" value="float32"' in page(client, "/matrix?precision=float32")
    [few] = Reader(settings).rows(
        "SELECT model_id, list(DISTINCT hardware ORDER BY hardware) AS hardware FROM compat_matrix "
        "WHERE mode = 'inference' GROUP BY ALL ORDER BY count(DISTINCT hardware), model_id LIMIT 1"
    )
    head = re.findall(r'<th scope="col">([^<]*)</th>', page(client, f"/matrix?q={few['model_id']}"))
    assert head[1:] == few["hardware"], "no column without a cell"
    assert client.get("/dashboard/matrix?model=vitt").status_code == 404
    [run] = Reader(settings).rows("SELECT run_id, host_id FROM runs WHERE host_id IS NOT NULL ORDER BY ALL LIMIT 1")
    of_run = page(client, f"/events?run_id={run['run_id']}&since=2020-01-01&until=2100-01-01")
    assert of_run.count('<th scope="row"') > 1
    assert "No event matches" in page(client, f"/events?run_id={run['run_id']}&until=2020-01-01")
    assert run["run_id"] in page(client, f"/runs?host_id={run['host_id']}")
    assert page(client, "/regressions?mode=inference").count('<th scope="row"') == 1
    assert "No shift matches" in page(client, "/regressions?mode=training")


@pytest.mark.parametrize(
    "path",
    [
        "/results?model=bert-base&model=vit&hardware=cpu&device=cpu-test-8-core&sequence_length=128",
        "/models/bert-base?hardware=cpu&hardware=openvino&sequence_length=128&status=ok&sort=-latency_ms",
        "/compare?model=bert-base&device=cpu-test-8-core&sequence_length=128&since=2020-01-01&metric=memory_peak_mib",
        f"/compare/changes?model=bert-base&before={BEFORE}&sequence_length=128&until=2100-01-01&verdict=slower",
    ],
)
def test_a_form_has_every_filter_of_its_page(client: TestClient, path: str) -> None:
    bare, _, query = path.partition("?")
    text = page(client, path)
    form = re.findall(rf'<form[^>]* action="/dashboard{bare}".*?</form>', text, re.DOTALL)[-1]
    lists = re.findall(r'<select name="(\w+)">((?:(?!</select>).)*)</select>', form, re.DOTALL)
    chosen = {(name, *re.findall(r'value="([^"]*)" selected', options)) for name, options in lists}
    written = set(re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]+)"', form)) | chosen
    assert {tuple(pair.split("=")) for pair in query.split("&")} <= written


def test_results_and_events_are_paged_to_their_end(client: TestClient, settings: Settings) -> None:
    for noun, table in (("results", "results"), ("events", "events")):
        path, seen = f"/{noun}", 0
        for _ in range(20):
            text = page(client, path)
            seen += text.count('<th scope="row"')
            following = re.search(r'href="/dashboard([^"]*)" rel="next"', text)
            if following is None:
                break
            path = following[1].replace("&amp;", "&")
        [row] = Reader(settings).rows(f"SELECT count(*) AS n FROM {table}")
        assert seen == row["n"]


def test_one_result_down_to_its_samples(client: TestClient, settings: Settings) -> None:
    [row] = Reader(settings).rows(
        "SELECT result_id FROM results WHERE model_id = 'vit-base' AND hardware = 'cpu' LIMIT 1"
    )
    text = page(client, f"/results/{row['result_id']}")
    assert "30 samples in order" in text
    assert text.count('<td class="num">') >= 60
    csv = client.get(f"/dashboard/results/{row['result_id']}/samples.csv")
    lines = csv.text.splitlines()
    assert lines[0] == "sample,latency_ns"
    assert len(lines) == 31
    assert csv.headers["content-disposition"].startswith("attachment")


def test_a_cell_of_the_matrix_leads_to_its_evidence(client: TestClient) -> None:
    heat = page(client, "/matrix?q=bert")
    [href] = re.findall(r'href="/dashboard(/matrix/cell\?model=bert-base&amp;hardware=openvino[^"]*)"', heat)
    evidence = page(client, href.replace("&amp;", "&"))
    assert len(re.findall(r'href="/dashboard/results/[0-9a-f-]{36}"', evidence)) == 2
    [href] = re.findall(r'href="/dashboard(/matrix/history[^"]*)"', evidence)
    assert page(client, href.replace("&amp;", "&")).count("is-untested") >= 1
    assert "accel bench run --models gpt2 --hardware qnn" in page(client, "/matrix/cell?model=gpt2&hardware=qnn")


def test_the_matrix_of_one_device_and_of_none(client: TestClient) -> None:
    assert "/dashboard/matrix/cell?model=bert-base" in page(client, "/matrix?device=cpu-test-8-core")
    missing = client.get("/dashboard/matrix?device=cpu-test-8-cora")
    assert missing.status_code == 404
    assert "cpu-test-8-core" in missing.text


def test_a_hardware_name_alone_leads_to_its_device(client: TestClient) -> None:
    text = page(client, "/hardware/openvino")
    assert "cpu-test-8-core" in text
    assert "/dashboard/charts/roofline.svg?theme=light&amp;hardware=openvino&amp;device=cpu-test-8-core" in text
    assert "Other devices under cpu" in page(client, "/hardware/cpu")


def test_models_and_hardware_are_held_side_by_side(client: TestClient) -> None:
    text = page(client, "/compare?model=bert-base&batch_size=4")
    assert text.count('class="best"') == 1
    several = page(client, "/compare?by=model&model=bert-base&model=vit-base&hardware=cpu&metric=memory_peak_mib")
    assert ">Peak memory, MiB</h2>" in several
    [drawn] = re.findall(r'src="(/dashboard/charts/hardware.svg[^"]*theme=light[^"]*)"', text)
    assert client.get(drawn.replace("&amp;", "&")).headers["content-type"] == "image/svg+xml"
    against = text[text.index("Against cpu") :]
    assert against.count('<th scope="row"') == 3, "cpu of two hosts, and openvino"
    assert re.search(r'<td class="num">[\d.]+ to [\d.]+<small>over ', against)
    assert "Did you mean" in page(client, "/compare?model=bert-bsae", 404)
    assert "vit-base" in several


def test_filtered_figures_say_how_names_of_hardware_were_understood(tmp_path: Path) -> None:
    devices_of_others = ("NVIDIA A10G", "NVIDIA H100 SXM5 80GB")
    results = [modelled(MODELS[0], "cuda", 4, device=name, provenance="imported") for name in devices_of_others]
    with TestClient(create_app(world(tmp_path, results))) as client:
        for path in ("/compare?model=bert-base&", "/results?", "/models/bert-base?", "/matrix?"):
            text = page(client, f"{path}hardware=g5.12xlarge&hardware=H100")
            assert "g5.12xlarge has 4 x NVIDIA A10G; each figure is of one.</p>" in text, path
            assert ">H100 is taken for the NVIDIA H100 SXM5 80GB" in text, path
            assert "each figure is of one" not in page(client, f"{path}hardware=NVIDIA%20A10G"), path


def test_models_of_other_modes_name_the_hardware_that_they_were_tried_on(tmp_path: Path) -> None:
    tried = [("cuda", "generation"), ("cpu", "inference"), ("cpu", "generation")]
    settings = world(
        tmp_path, [modelled(MODELS[0], hardware, 1, provenance="imported", mode=mode) for hardware, mode in tried]
    )
    with TestClient(create_app(settings)) as client:
        listed = page(client, "/models?hardware=cuda")
        cells = re.findall(r'href="/dashboard(/matrix/cell[^"]*)"', listed)
        assert [re.search("hardware=(.*)&amp;mode=(.*)", cell).groups() for cell in cells] == [
            ("cpu", "inference"), ("cuda", "generation"),
        ]  # fmt: skip
        for cell in cells:
            page(client, cell.replace("&amp;", "&"))


def test_what_the_catalog_knows_of_an_imported_model_is_on_its_page(tmp_path: Path) -> None:
    imported = result(model_id="bert-large", model_family="bert", provenance="imported")
    with TestClient(create_app(world(tmp_path, [imported]))) as client:
        text = page(client, "/models/bert-large")
        assert "<dt>Architecture</dt><dd>bert</dd></div><div><dt>Modality</dt><dd>text</dd>" in text
        for fact in ("<dt>Parameters</dt><dd>335 M", "<dt>Layers</dt><dd>24<", "<dt>FLOPs per item</dt><dd>78.9 G"):
            assert fact in text
        listed = page(client, "/models?modality=text")
        assert ">bert-<wbr>large</a>" in listed
        assert "335 M" in listed


@pytest.fixture(scope="module")
def namesakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One model on two processors of one name, twice on each."""
    settings = world(tmp_path_factory.mktemp("namesakes"), [
        payload
        for number in (1, 2) for seed in (1, 2)
        for payload in (
            modelled(MODELS[0], "cpu", 1, device_id=f"cpu-{number}", scale=number, seed=seed),
            verified(MODELS[0], "cpu", 1).model_copy(update={"device_id": f"cpu-{number}"}),
        )
    ])  # fmt: skip
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "times"),
    [
        ("/compare?model=bert-base", 1), ("/compare?hardware=cpu&by=model", 1), ("/models/bert-base", 4),
        ("/results", 2), ("/runs/run-1", 2), ("/matrix/cell?model=bert-base&hardware=cpu", 2),
        ("/recommend?model=bert-base", 2),
    ],
)  # fmt: skip
def test_devices_of_one_name_are_told_apart_on_every_page(namesakes: TestClient, path: str, times: int) -> None:
    text = page(namesakes, path).replace("<wbr>", "")
    assert [text.count(f"{CPU} (cpu-{number})") >= times for number in (1, 2)] == [True, True]
    assert not re.search(rf">{CPU}<", text)


def test_hosts_of_one_name_and_models_of_one_beginning_are_told_apart(tmp_path: Path) -> None:
    machine = HostObserved(hostname="vm", os="Linux", cpu_model=CPU, cpu_cores_logical=8, memory_mib=1.0, software={})
    models = [f"{'a-model-of-many-words-' * 2}{end}" for end in ("with", "without")]
    settings = world(tmp_path, [
        payload
        for model in models
        for payload in (result(model_id=model), verification(model_id=model))
    ])  # fmt: skip
    seen = [event(one, host_id=host) for host in ("host-a", "host-b") for one in (machine, *devices()[:1])]
    EventLog.open(settings).append(seen)
    refresh(settings)
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        text = page(client, "/hardware")
        assert all(f">vm ({host})</h2>" in text for host in ("host-a", "host-b"))
        seen = re.findall(
            r'<section aria-labelledby="([^"]*)"><header><h2 id="([^"]*)">As ',
            page(client, "/hardware/cpu?device=cpu-test-8-core"),
        )
        assert seen == [(f"seen-{number}", f"seen-{number}") for number in (1, 2, 3)]
        matrix = page(client, "/matrix").replace("<wbr>", "")
        assert all(f">{model}</a>" in matrix for model in models)


def test_series_of_one_cell_name_their_devices(namesakes: TestClient) -> None:
    text = page(namesakes, "/models/bert-base")
    assert re.findall(r"cpu, batch 1, length 128, float32, (cpu-\d)", text) == ["cpu-1", "cpu-2"]


def test_a_recommendation_is_explained(client: TestClient) -> None:
    text = page(client, "/recommend?model=bert-base&batch_size=4&objective=throughput&max_latency_ms=100000")
    assert text.count('class="interval"') >= 3
    assert "measured" in text
    assert re.search(r"Evidence: <a href=\"/dashboard/results/", text)
    assert "no NVIDIA driver" in text
    of_others = page(client, "/recommend?model=bert-base&hardware=H100&where=here")
    assert "The warnings below say why" in of_others
    assert "No such hardware is of this host" in of_others
    none = page(client, "/recommend?model=bert-base&hardware=cpu&max_latency_ms=0.001")
    assert re.search(r"No hardware keeps to the limits; \d+ (has|have) a figure beyond them", none)


def test_devices_are_counted_in_whole_numbers(client: TestClient) -> None:
    form = page(client, "/serving")
    assert '<input type="number" min="1" name="max_devices"' in form
    assert '<input type="number" step="any" min="0" name="max_watts"' in form


def test_a_serving_form_offers_the_engines_and_answers_for_each(client: TestClient) -> None:
    [choices] = re.findall(r'<select name="engine">(.*?)</select>', page(client, "/serving"), re.DOTALL)
    engines = re.findall(r'<option value="([^"]+)"', choices)
    assert engines == ["vllm", "sglang", "trtllm", "llama.cpp"]
    for engine in engines:
        text = page(client, f"/serving?model=llama-3.1-8b&hardware=H100&engine={engine}&engine_version=0.1")
        assert f"{engine}{' 0.1' if engine != 'llama.cpp' else ''}</h2>" in text
        assert f'<option value="{engine}" selected>' in text


def test_texts_of_a_serving_answer_name_fields_as_the_form_does(client: TestClient) -> None:
    text = page(client, "/serving?model=llama-3.1-8b&hardware=H100")
    assert "Neither “Users at once” nor “Requests per second” given: answering for one user." in text
    assert (
        "“99th percentile of prompts” and “99th percentile of answers”, or a trace of requests (accel serving" in text
    )
    large = page(client, "/serving?model=llama-3.1-405b&hardware=H100&users=1")
    assert re.search(r"“Devices at most” \d+ would allow a pipeline over two hosts", large)
    for answer in (text, large):
        assert not re.search(r"`[a-z_]+`", answer)


def test_a_serving_answer_shows_memory_trade_offs_and_how_to_start(client: TestClient) -> None:
    query = "model=llama-3.1-8b&users=17&quantization=fp8&engine=&max_watts=&hardware=H100&hardware=L4&hardware=T4"
    text = page(client, f"/serving?{query}")
    ranking = text[text.index('id="ranking"') : text.index('id="warnings"')]
    assert len(re.findall(r'<circle class="(?:front|other)"', text)) == ranking.count('<tr><td class="num">') >= 4
    assert text.count('class="front"') == ranking.count("★") >= 1
    assert "requests of this length at once" in text
    assert "Times are those of the typical request" in ranking
    percentile = page(client, f"/serving?{query.replace('max_watts=', 'percentile=99&max_first_token_ms=99999')}")
    assert [head.count("p99 first token") for head in (ranking, percentile)] == [0, 1]
    assert [part.count('<th scope="col"') for part in re.findall(r"<thead>.*?</thead>", ranking)[:1]] == [9]
    assert re.search(r"<code>(vllm serve|trtllm-serve|python -m sglang)", text)
    assert "H100 is taken for the NVIDIA H100 SXM5 80GB" in text
    slow = page(client, f"/serving?{query.replace('max_watts=', 'percentile=99&max_first_token_ms=0.1')}")
    assert "No deployment serves it so" in slow
    assert re.search(
        r"With 1,024 tokens in and 256 out. The nearest is \d . NVIDIA .*: even a typical request may take", slow
    )
    assert "may miss a goal" in slow


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("model=llama-9.9-9b", 404, "config.json"),
        ("model=llama-3.1-8b&users=0", 422, "Users at once: "),
        ("model=llama-3.1-8b&users=2&requests_per_s=1", 422, "give Users at once or Requests per second, not both"),
        ("model=llama-3.1-8b&quantization=q9", 422, "q9"),
        ("model=llama-3.1-8b&hardware=A100000", 422, "A100000"),
        ("model=llama-3.1-8b&engine=slow", 422, "Engine: "),
        ("model=llama-3.1-8b&engine=llama.cpp&kv_cache=fp8", 422, "leave “Keys and values” out"),
        ("model=llama-3.1-8b&max_first_token_ms=100", 422, "needs a percentile"),
        ("model=llama-3.1-8b&prefix_cached_share=1.5", 422, "Share of prompts in the prefix cache: "),
        ("model=llama-3.1-8b&input_tokens=2000000", 422, "Tokens of a prompt: "),
        ("model=llama-3.1-8b&max_devices=0", 422, "Devices at most: expected 1 or more, got "),
    ],
)
def test_a_load_that_cannot_be_answered_says_why_in_the_form(
    client: TestClient, query: str, status: int, says: str
) -> None:
    text = page(client, f"/serving?{query}", status)
    assert says in text
    assert 'role="alert"' in text


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("model=bert-bse", 404, "Did you mean"),
        ("model=bert-base&batch_size=0", 422, "batch_size"),
        ("model=bert-base&hardware=cudaa", 422, "cudaa"),
        ("model=bert-base&precision=a%20b", 422, "precision"),
        ("model=bert-base&max_watts=-1", 422, "Power at most, W: expected a number above 0, got -1"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why_in_the_form(
    client: TestClient, query: str, status: int, says: str
) -> None:
    text = page(client, f"/recommend?{query}", status)
    assert says in text
    assert 'role="alert"' in text
    assert '<form method="get"' in text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/models?hardware=toaster&q=bert", 404),
        ("/models/bert-base?precision=float32&hardware=toaster", 404),
        ("/hardware?q=A100&kind=tpu", 422),
        ("/matrix?q=bert&device=nothing", 404),
        ("/compare?model=bert-bse&batch_size=4", 404),
        ("/compare?model=bert-base&batch_size=99999999999", 422),
        ("/compare/changes?model=bert-base&before=2026-11-01&batch_size=many", 422),
        ("/regressions?model=bert-bse&hardware=cpu", 404),
        ("/recommend?model=bert-base&batch_size=many", 422),
        ("/recommend?model=bert-base&max_watts=1e40", 422),
        ("/serving?model=llama-3.1-8b&max_devices=1.5", 422),
        ("/serving?model=llama-3.1-8b&requests_per_s=0&percentile=99", 422),
        ("/results?model=bert-base&device=nothing", 404),
        ("/runs?commit=abc&status=odd", 404),
        ("/requests?hardware=cpu&state=odd", 422),
        ("/events?type=RunStarted&run_id=nothing", 404),
    ],
)
def test_a_form_that_cannot_be_used_says_why_and_keeps_what_was_written(
    client: TestClient, path: str, status: int
) -> None:
    text = page(client, path, status)
    bare, _, query = path.partition("?")
    form = re.findall(rf'<form[^>]* action="/dashboard{bare}[#"].*?</form>', text, re.DOTALL)[-1]
    for name, value in (pair.split("=") for pair in query.split("&")):
        written = rf'name="{name}"[^>]* value="{value}"|name="{name}">(?:(?!</select>).)*value="{value}" selected'
        assert re.search(written, form, re.DOTALL), name
    assert text.count('role="alert"') == 1
    assert text.index('role="alert"') < text.index(form)
    assert "<tbody>" not in text[text.index(form) :], "no answer to another question"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nope", 404),
        ("/models/no-such-model", 404),
        ("/runs/none", 404),
        ("/results/00000000-0000-0000-0000-000000000000", 404),
        ("/events/00000000-0000-0000-0000-000000000000", 404),
        ("/regressions/none", 404),
        ("/hardware/abacus", 404),
        ("/matrix/cell?model=none&hardware=cpu", 404),
        ("/results/rubbish", 422),
        ("/results?hardwear=cpu", 422),
        ("/results?since=yesterday", 422),
        ("/results?before=x", 422),
        ("/results?cursor=x", 404),
        ("/models?page=0", 422),
        ("/compare?metric=beauty", 422),
        ("/recommend?batch_size=many", 422),
        ("/matrix/cell", 422),
    ],
)
def test_errors_are_pages_that_lead_on(client: TestClient, path: str, status: int) -> None:
    text = page(client, path, status)
    assert 'role="alert"' in text
    assert 'href="/dashboard"' in text


def test_changes_between_two_snapshots_have_a_page(client: TestClient) -> None:
    assert "accel db snapshot create" in page(client, "/compare/changes")
    assert "no snapshot&#39;s name" in page(client, "/compare/changes?model=bert-base&before=nothing", 404)
    assert "name a later date" in page(client, "/compare/changes?model=bert-base&before=2020-01-01", 404)
    text = page(client, f"/compare/changes?model=bert-base&before={BEFORE}")
    assert re.search(r">slower<.*?\+4\d\.\d.*?>measured<", text, re.DOTALL)
    assert f'<option value="{BEFORE}">' in text
    assert "No cell was measured" in page(client, f"/compare/changes?model=bert-base&before={BEFORE}&verdict=faster")
    assert page(client, "/compare/changes?min_change_percent=0", 422)


def test_an_empty_home_says_how_to_begin(empty: TestClient) -> None:
    for path in ("", "/models", "/matrix", "/events", "/recommend"):
        text = page(empty, path)
        assert "accel bench run" in text
        assert "accel migrate PATH" in text


def test_tables_without_results_say_what_to_do(tmp_path: Path) -> None:
    with TestClient(create_app(world(tmp_path, [])), raise_server_exceptions=False) as client:
        for path in ("", "/models", "/matrix", "/history", "/results", "/regressions"):
            assert "accel " in page(client, path)
        assert "Test CPU" in page(client, "/hardware")


def test_pages_are_kept_by_the_browser_while_the_snapshot_is_in_service(client: TestClient) -> None:
    first = client.get("/dashboard/models")
    again = client.get("/dashboard/models", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert client.get("/dashboard", headers={"if-none-match": 'W/"other"'}).status_code == 200


def test_browsers_are_led_to_the_dashboard_and_programs_are_not(client: TestClient) -> None:
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/dashboard")
    assert "dashboard" in client.get("/", headers={"accept": "*/*"}).json()["open"]["GET"][0]
    assert client.get("/nope").headers["content-type"] == "application/problem+json"


def test_a_shift_is_rejected_and_then_accepted_with_a_name_and_a_reason(client: TestClient, settings: Settings) -> None:
    [row] = Reader(settings).rows("SELECT * FROM regressions")
    path = f"/regressions/{row['regression_id']}"
    text = page(client, path)
    assert ("Accept the new level" in text, "Reject: no real shift" in text) == (True, True)
    assert row["regression_id"] in page(client, "/regressions?state=open&direction=regressed&model=bert-base")
    for decision in ("accept", "reject"):
        missing = client.post(f"/dashboard{path}", data={"decision": decision, "by": "Ada <b>", "reason": " "})
        assert missing.status_code == 422
        assert 'value="Ada &lt;b&gt;"' in missing.text
        assert 'role="alert"' in missing.text
        assert client.get(missing.url.path).text == text, "the address of a refusal is that of the page"
        given = {"decision": decision, "reason": "x"}
        assert client.post(f"/dashboard{path}", data=given).status_code == 422, "of nobody"
        assert client.post("/dashboard/regressions/none", data={**given, "by": "A"}).status_code == 404
    given = {"decision": "reject", "by": "Ada", "reason": "it throttled & <more>"}
    assert "decision" in client.post(f"/dashboard{path}", data={**given, "decision": ""}).text
    done = client.post(f"/dashboard{path}", data=given, follow_redirects=False)
    assert (done.status_code, done.headers["location"]) == (303, f"/dashboard{path}")
    again = client.post(f"/dashboard{path}", data=given, follow_redirects=False)
    assert (again.status_code, again.headers["location"]) == (303, f"/dashboard{path}"), "a second click"
    twice = client.post(f"/dashboard{path}", data={**given, "by": "Cy", "reason": "me too"})
    assert (twice.status_code, "rejected already, by Ada" in twice.text) == (409, True)
    text = page(client, path)
    assert "it throttled &amp; &lt;more&gt;" in text
    assert text.count("<td>rejected</td>") == 5
    assert ("Accept the new level" in text, "Reject: no real shift" in text) == (True, False)
    assert "<b>0</b><span>open regressions" in page(client, "")
    assert row["regression_id"] in page(client, "/regressions?state=rejected")
    other = [RunStarted(kind="benchmark", labels={"branch": "other"}), result(memory_peak_mib=1.0), verification()]
    EventLog.open(settings).append([event(payload, run_id="run-other") for payload in other])
    client.post(f"/dashboard{path}", data={"decision": "accept", "by": "Bob", "reason": "five layers"})
    text = page(client, path)
    assert "Without 1 result of other branches." in text
    assert re.search("Accepted by <b>Bob</b>.*Earlier decisions.*Rejected by <b>Ada</b>", text, re.DOTALL)
    words = [e.payload for e in EventLog.open(settings).read() if isinstance(e.payload, ShiftAccepted | ShiftRejected)]
    assert [word.by for word in words] == ["Ada", "Bob"]
    assert "No shift matches" in page(client, "/regressions?state=open")
    client.post(f"/dashboard{path}", data={"decision": "reopen", "by": "Eve", "reason": "the wrong one"})
    text = page(client, path)
    assert re.search("Reopened by <b>Eve</b>.*Accepted by <b>Bob</b>", text, re.DOTALL)
    assert ("Accept the new level" in text, "Reject: no real shift" in text, ">Reopen<" in text) == (True, True, False)
    assert row["regression_id"] in page(client, "/regressions?state=open")


def test_shifts_of_memory_and_failures_name_their_measure(own: Settings) -> None:
    [row] = Reader(own).rows("SELECT * FROM regressions")
    # The newest of their branch, else they were gone. Another test adds a result of another branch.
    [newest] = Reader(own).rows("SELECT max(result_id) AS first_result FROM results WHERE run_id <> 'run-other'")
    names = (*MeasuredSeries.model_fields, "processes_before", "processes_after", "evidence")
    known = {name: row[name] for name in names} | newest
    log = EventLog.open(own)
    memory = {"measure": "memory", "before_mib": 700.5, "after_mib": 1401.0, "change_percent": 100.0}
    failing = {"measure": "failures", "before_ms": 20.0, "reason": "out of memory"}
    log.append([
        Event.of(RegressionFound(**{**known, **one, "regression_id": name, "found_by": "check", "state": "regressed"}),
                 source="test")
        for name, one in (("grown", memory), ("failing", failing))
    ])  # fmt: skip
    refresh(own)
    with TestClient(create_app(own)) as client:
        text = page(client, "/regressions/grown")
        assert "<b>700.5 MiB</b><span>memory before" in text
        assert "Peak of memory of each process in order of time" in text
        text = page(client, "/regressions/failing")
        assert "<b>fails</b><span>failures after" in text
        assert "Median latency of each process" in text
        listed = page(client, "/regressions")
        assert re.search(r"<td>memory</td>.*700.5 MiB.*1,401 MiB", listed)
        assert "<small>memory</small>" in page(client, "")
        assert "failures regressed, cpu" in page(client, "/models/bert-base")


def test_a_benchmark_is_asked_for_and_taken_back_on_its_page(client: TestClient, settings: Settings) -> None:
    assert "No request yet" in page(client, "/requests")
    form = {"models": "bert-tiny, vit-tiny", "batch_sizes": "1, 2", "precision": "float32", "priority": "3"}
    for wrong, told in (
        ({"models": " "}, "at least one model"),
        ({"hardware": ""}, "choose hardware"),
        ({"models": "bertt"}, "No model is called"),
        ({"batch_sizes": "four"}, "whole numbers"),
        ({"precision": "float3"}, "float3"),
        ({"hardware": "toaster"}, "toaster"),
    ):
        answer = client.post("/dashboard/requests", data={**form, "hardware": "cpu", **wrong})
        assert (answer.status_code, told in answer.text) == (422, True), wrong
        assert 'role="alert"' in answer.text
    again = client.post("/dashboard/requests", data={**form, "batch_sizes": "four", "hardware": "cpu"}).text
    assert 'value="bert-tiny, vit-tiny"' in again, "what was typed is kept"
    assert re.search(r'value="cpu" checked', again)
    assert "No request yet" in page(client, "/requests"), "nothing wrong was stored"

    done = client.post("/dashboard/requests", data={**form, "hardware": "cpu"}, follow_redirects=False)
    assert done.status_code == 303
    path = done.headers["location"].removeprefix("/dashboard")
    asked = page(client, path)
    assert "bert-tiny, vit-tiny on cpu" in asked
    assert "It waits for a host with cpu" in asked
    named = client.post("/dashboard/requests", data={**form, "hardware": "jax", "host": " box:4000 "})
    assert "It waits for the host <b>box:4000</b> with jax" in named.text
    assert "<td>box:4000</td>" in page(client, "/requests")
    both = client.post("/dashboard/requests", data={**form, "hardware": ["cpu", "cuda"]}, follow_redirects=False)
    assert both.headers["location"] == "/dashboard/requests"
    assert page(client, "/requests").count("bert-tiny, vit-tiny</td>") == 4
    assert page(client, "/requests?hardware=cuda&state=open").count("bert-tiny, vit-tiny</td>") == 1
    assert "No request matches" in page(client, "/requests?state=done")
    assert client.get("/requests").json()["requests"][-1]["config"]["batch_sizes"] == [1, 2]
    deadline = time.monotonic() + 60
    while not Reader(settings).rows("SELECT 1 FROM requests WHERE hardware = 'cuda'"):
        assert time.monotonic() < deadline, "the tables did not follow"
        time.sleep(0.1)

    seen = client.get(f"/dashboard{path}").headers["etag"]
    assert client.post(f"/dashboard{path}", follow_redirects=False).status_code == 303
    told = client.get(f"/dashboard{path}", headers={"if-none-match": seen})
    assert told.status_code == 200, "the page is another one now"
    assert "taken back on its page" in told.text
    twice = client.post(f"/dashboard{path}")
    assert twice.status_code == 409
    assert client.get(twice.url.path).text == told.text, "the address of a refusal is that of the page"
    page(client, "/requests/00000000-0000-7000-8000-000000000000", 404)


def test_a_form_sent_twice_asks_for_one_benchmark(own: Settings) -> None:
    with TestClient(create_app(own), headers={"origin": "http://testserver"}, follow_redirects=False) as client:
        keys = [re.findall(r'name="key" value="(.*?)"', page(client, "/requests"))[0] for _ in range(2)]
        form = {"models": "bert-tiny", "hardware": "cpu"}

        def ask(key: str, **more: Any) -> str:
            answer = client.post("/dashboard/requests", data={**form, "key": key, **more})
            assert answer.status_code == 303, answer.text
            return answer.headers["location"]

        before = len(client.get("/requests").json()["requests"])
        first = ask(keys[0])
        assert ask(keys[0]) == first
        others = {ask(keys[0], batch_sizes="8"), ask(keys[1])}
        assert len(others - {first}) == 2, "another benchmark from the same page, and the same one from a page anew"
        assert ask(keys[1], hardware=["cpu", "cuda"]) == ask(keys[1], hardware=["cpu", "cuda"]) == "/dashboard/requests"
        assert len(client.get("/requests").json()["requests"]) == before + 5


def test_what_was_held_out_of_the_predictor_is_drawn(client: TestClient, empty: TestClient) -> None:
    assert "/dashboard/charts/predicted.svg" in page(client, "/recommend")
    assert "Predicted against measured" in client.get("/dashboard/charts/predicted.svg").text
    assert "no provenance" in client.get("/dashboard/charts/predicted.svg?provenance=measured").text
    assert empty.get("/charts/predicted.svg").status_code in (404, 503)
    assert "predicted" in {one["name"] for one in client.get("/charts").json()["charts"]}


def test_where_keys_are_asked_for_nobody_speaks_for_another(own: Settings) -> None:
    _, secret = KeyStore(own).create("ann", Scope.write)
    log, before = EventLog.open(own), EventLog.open(own).snapshot()
    [row] = Reader(own).rows("SELECT regression_id FROM regressions")
    rest, form = f"/regressions/{row['regression_id']}/reject", f"/dashboard/regressions/{row['regression_id']}"
    decision = {"decision": "reject", "reason": "it throttled"}
    with TestClient(create_app(own, host="127.0.0.1"), base_url="http://127.0.0.1:8000") as client:
        client.headers["authorization"] = f"Bearer {secret}"
        assert "As <b>ann</b>" in client.get(form).text
        claimed = client.post(rest, json={"by": "bob", "reason": "it throttled"})
        assert (claimed.status_code, "called ann" in claimed.json()["detail"]) == (422, True)
        assert client.post(form, data={**decision, "by": "bob"}).status_code == 422
        assert client.post(form, data=decision, follow_redirects=False).status_code == 303
        accept = rest.replace("reject", "accept")
        assert client.post(accept, json={"reason": "six layers"}, headers={"Idempotency-Key": "a"}).status_code == 202
    new = log.read(Snapshot(log.snapshot().segments - before.segments))
    decisions = ShiftAccepted | ShiftRejected | WriteAudited
    said = [event.payload.by for event in new if isinstance(event.payload, decisions)]
    assert said == ["ann"] * 4


def test_charts_are_drawn_in_both_colors_or_say_why_not(client: TestClient) -> None:
    text = page(client, "/models/bert-base?hardware=cpu&hardware=openvino")
    sources = [source.replace("&amp;", "&") for source in re.findall(r'src="([^"]*/charts/[^"]*)"', text)]
    assert len(sources) == 12
    light, dark = (client.get(source) for source in sources[:2])
    assert light.headers["content-type"] == "image/svg+xml"
    assert light.text.startswith("<svg")
    assert light.text != dark.text
    assert client.get(sources[0].replace(".svg", ".png")).content.startswith(b"\x89PNG")
    nothing = client.get("/dashboard/charts/latency.svg?model=bert-base&batch_size=77")
    assert nothing.status_code == 200
    assert "<text" in nothing.text
    assert page(client, "/charts/beauty.svg", 404)
