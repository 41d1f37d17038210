"""The dashboard in headless Chromium: one browser and one server for all tests."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pages_world import PATHS, pages_world
from starlette import types as asgi

from accel_platform.api_keys import KeyStore, Scope
from accel_platform.backends.browser.launch import find_browser
from accel_platform.events import EventLog
from accel_platform.events.types import WriteAudited
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.service.app import create_app
from predictor.service.server import listen

# A browser opens each page.
pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api")
BROWSERS = True
AXE = "axe-core-4.10.3.tgz"
AXE_SHA512 = "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg=="
FLAGS = ("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync")
KEEP_NO_PAGES = "--disable-back-forward-cache"
"""Flag of the driver; without it a browser keeps whole pages in memory for the way back."""
NARROW = {"width": 375, "height": 700}
Answers = list[tuple[str, int]]
"""Paths and statuses, in order."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return pages_world(tmp_path_factory.mktemp("pages"))


@contextmanager
def _served(settings: Settings, answers: Answers | None = None) -> Iterator[str]:
    app = create_app(settings, host="127.0.0.1")

    async def noting(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        async def note(message: asgi.Message) -> None:
            if answers is not None and message["type"] == "http.response.start":
                answers.append((scope["path"], message["status"]))
            await send(message)

        await app(scope, receive, note)

    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(noting, log_level="warning"))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        serving.join()


@pytest.fixture(scope="module")
def answers() -> Answers:
    """What the server answered so far: a browser shows its copy of a page, not the 304 that let it."""
    return []


@pytest.fixture(scope="module")
def url(settings: Settings, answers: Answers) -> Iterator[str]:
    with _served(settings, answers) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = find_browser()
    if found is None:
        pytest.skip("no browser of the Chromium family is installed")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=found.path, args=list(FLAGS))
        yield launched
        launched.close()


class Visitor:
    """A page that remembers what went wrong on it, and which hosts it asked."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.url, self.wrong, self.hosts = url, [], set()
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.on(
            "console", lambda said: self.wrong.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def visit(self, path: str) -> Any:
        answer = self.page.goto(f"{self.url}/dashboard{path}", wait_until="load")
        assert answer is not None
        return answer

    def overflow(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.fixture
def visitor(browser: Any, url: str) -> Iterator[Visitor]:
    visitor = Visitor(browser, url)
    yield visitor
    visitor.context.close()
    assert visitor.hosts == {url.removeprefix("http://")}


LOOKS = """() => [
    getComputedStyle(document.body).backgroundColor,
    getComputedStyle(document.querySelector('header.side')).position,
    document.querySelector('button.theme').hidden,
    [...document.images].filter(image => image.complete && !image.naturalWidth).length,
]"""
"""What only the stylesheet, the script and the pictures of a page bring about."""
STYLED = ["rgb(246, 247, 249)", "sticky", False, 0]


def test_each_page_loads_without_a_word_on_the_console_fits_a_telephone_and_comes_again_as_it_was(
    visitor: Visitor, answers: Answers, settings: Settings
) -> None:
    page, wide, overflow, looks = visitor.page, visitor.page.viewport_size, {}, []
    paths = (*PATHS, *_details(settings))
    for path in paths:
        page.set_viewport_size(wide)
        assert visitor.visit(path).status == 200, path
        assert page.locator("h1").count() == 1
        looks.append((path, "first", page.evaluate(LOOKS)))
        page.set_viewport_size(NARROW)
        overflow[path] = visitor.overflow()
        page.set_viewport_size(wide)
        elsewhere = "Runs" if path.startswith("/models") else "Models"
        page.get_by_label("Pages").get_by_role("link", name=elsewhere, exact=True).click()
        page.wait_for_url(f"**/{elsewhere.lower()}")
        for how, again in (("back", page.go_back), ("reloaded", page.reload)):
            again()
            assert page.url == f"{visitor.url}/dashboard{path}"
            looks.append((path, how, page.evaluate(LOOKS)))
    assert {path: more for path, more in overflow.items() if more > 0} == {}
    assert [seen for seen in looks if seen[2] != STYLED] == []
    assert visitor.wrong == []
    kept = {path for path, status in answers if status == 304}
    assert {f"/dashboard{path.partition('?')[0]}" for path in paths} <= kept, "each was asked for by its ETag"


def test_the_other_pages_run_when_they_come_again(visitor: Visitor) -> None:
    for path, shows in (("/docs", ".swagger-ui .info .title"), ("/sign-in", "main h1")):
        visitor.page.goto(f"{visitor.url}{path}")
        visitor.page.wait_for_selector(shows)
        visitor.page.reload()
        visitor.page.wait_for_selector(shows)
    assert visitor.wrong == []


CUT = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth + 1).length"
"""How many tables of a page go on beyond their edge."""


@pytest.mark.parametrize("path", ["/models/bert-base", "/results", "/serving?model=llama-3.1-8b&users=16"])
def test_tables_of_figures_fit_a_window_of_1280(visitor: Visitor, path: str) -> None:
    visitor.visit(path)
    assert visitor.page.locator(".scroll").count()
    assert visitor.page.evaluate(CUT) == 0


CUT_CHOICES = """() => [...document.querySelectorAll('select:not([multiple])')].flatMap(select => {
    const ruler = document.createElement('canvas').getContext('2d'), style = getComputedStyle(select);
    ruler.font = style.font;
    const room = select.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return [...select.options].map(option => option.text.trim()).filter(text => ruler.measureText(text).width > room);
})"""
"""The choices of a page's lists that are wider than the list."""


def test_choices_of_forms_are_not_cut(visitor: Visitor) -> None:
    cut = {}
    for path in PATHS:
        visitor.visit(path)
        cut[path] = visitor.page.evaluate(CUT_CHOICES)
    assert {path: texts for path, texts in cut.items() if texts} == {}


def test_a_wide_table_has_a_shadow_where_it_goes_on_and_its_names_stay_whole(visitor: Visitor) -> None:
    visitor.page.set_viewport_size(NARROW)
    visitor.visit("/matrix")
    table = visitor.page.locator(".scroll.is-cut")
    table.wait_for()
    assert table.locator("tbody th").first.evaluate("name => name.offsetWidth") == 130
    table.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    visitor.page.locator(".scroll:not(.is-cut)").wait_for()


def test_charts_are_not_shrunk(visitor: Visitor) -> None:
    visitor.visit("/models/bert-base")
    visitor.page.wait_for_load_state("networkidle")
    sizes = visitor.page.evaluate(
        "[...document.images].filter(image => image.offsetWidth).map(image => [image.naturalWidth, image.offsetWidth])"
    )
    assert len(sizes) > 3
    assert [(natural, shown) for natural, shown in sizes if shown < min(natural, 960)] == []


def _details(settings: Settings) -> list[str]:
    """A page of each kind that is of one thing."""
    reader = Reader(settings)
    [shift] = reader.rows("SELECT regression_id FROM regressions")
    [result] = reader.rows("SELECT result_id, run_id FROM results WHERE provenance = 'measured' LIMIT 1")
    return [f"/regressions/{shift['regression_id']}", f"/results/{result['result_id']}", f"/runs/{result['run_id']}",
            f"/events/{result['result_id']}"]  # fmt: skip


def test_a_filter_a_sort_and_a_deep_link(visitor: Visitor) -> None:
    visitor.visit("/models")
    visitor.page.get_by_label("Name or family").fill("bert")
    visitor.page.get_by_role("button", name="Filter").click()
    visitor.page.wait_for_url("**/dashboard/models?q=bert")
    assert visitor.page.locator("tbody tr").count() == 2
    visitor.page.get_by_role("link", name="Results", exact=True).last.click()
    visitor.page.wait_for_url("**q=bert&sort=-results")
    visitor.page.get_by_role("link", name="bert-base", exact=True).click()
    assert visitor.page.locator("h1").inner_text() == "bert-base"
    assert visitor.wrong == []


def test_the_way_back_shows_the_form_as_in_the_address(browser: Any, url: str) -> None:
    found = find_browser()
    assert found is not None
    keeping = browser.browser_type.launch(
        executable_path=found.path, args=list(FLAGS), ignore_default_args=[KEEP_NO_PAGES]
    )
    for one in (browser, keeping):
        visitor = Visitor(one, url)
        name = visitor.page.get_by_label("Name or family")
        visitor.visit("/models")
        for text in ("bert", "vit"):
            name.fill(text)
            visitor.page.get_by_role("button", name="Filter").click()
            visitor.page.wait_for_url(f"**/dashboard/models?q={text}")
        for address, text in (("models?q=bert", "bert"), ("models", "")):
            visitor.page.go_back(wait_until="commit")
            playwright.expect(visitor.page).to_have_url(f"{url}/dashboard/{address}")
            playwright.expect(name).to_have_value(text)
        visitor.context.close()
    keeping.close()


def test_a_question_is_asked_and_answered(visitor: Visitor) -> None:
    visitor.visit("/recommend")
    visitor.page.get_by_label("Model").fill("bert-base")
    visitor.page.get_by_label("Batch size").fill("4")
    visitor.page.get_by_label("openvino").check()
    visitor.page.get_by_role("button", name="Recommend").click()
    visitor.page.wait_for_url("**/recommend?model=bert-base&batch_size=4&**hardware=openvino**")
    assert visitor.page.locator("svg.interval").count() == 1
    visitor.page.get_by_text("measured", exact=True).first.wait_for()
    assert visitor.wrong == []


def test_a_form_can_be_used_again_while_its_answer_is_awaited(visitor: Visitor) -> None:
    visitor.visit("/serving")
    visitor.page.route("**/serving?*", lambda route: route.fulfill(status=204))  # as Escape: the page stays
    visitor.page.get_by_label("Model").fill("llama-3.1-8b")
    with visitor.page.expect_request("**/serving?*") as sent:
        visitor.page.get_by_label("Model").press("Enter")
    assert sent.value.url.endswith("/serving?model=llama-3.1-8b&kv_cache=auto&disaggregated=false&objective=cost")
    visitor.page.get_by_label("Users at once").fill("16")
    visitor.page.unroute("**/serving?*")
    visitor.page.get_by_role("button", name="Answer").click()
    visitor.page.wait_for_url("**/serving?model=llama-3.1-8b&kv_cache=auto&users=16&**")


def test_an_error_is_a_page(visitor: Visitor) -> None:
    assert visitor.visit("/models/nobody").status == 404
    assert "nobody" in visitor.page.get_by_role("alert").inner_text()
    visitor.page.locator("main").get_by_role("link", name="Overview").click()
    assert visitor.page.url.endswith("/dashboard")


def test_where_keys_are_asked_for_a_person_signs_in_decides_and_signs_out(
    browser: Any, settings: Settings, tmp_path: Path
) -> None:
    own = settings.model_copy(update={"home": shutil.copytree(settings.home, tmp_path / "home")})
    secrets = {scope: KeyStore(own).create(scope, scope)[1] for scope in (Scope.read, Scope.write)}
    [shift] = Reader(own).rows("SELECT regression_id FROM regressions")
    path = f"/regressions/{shift['regression_id']}"
    with _served(own) as url:
        person = Visitor(browser, url)
        page = person.page

        def sign_in(key: str) -> None:
            person.visit(path)
            assert page.locator("h1").inner_text() == "Sign in"
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Sign in").click()

        def say(reason: str, button: str) -> None:
            page.get_by_label("Why").fill(reason)
            page.get_by_role("button", name=button).click()

        sign_in(secrets[Scope.read])
        page.wait_for_url(f"**/dashboard{path}")
        assert person.wrong == []
        say("a new compiler", "Accept the new level")
        assert "this needs write" in page.get_by_role("alert").inner_text()
        assert [text for text in person.wrong if "403" not in text] == []
        assert page.url == f"{url}/dashboard{path}", "it can be loaded again"
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/sign-in")
        person.wrong.clear()

        sign_in(secrets[Scope.write])
        page.wait_for_url(f"**/dashboard{path}")
        say("it throttled", "Reject: no real shift")
        page.get_by_text("Rejected by write").wait_for()
        say("a new compiler", "Accept the new level")
        page.get_by_text("Accepted by write").wait_for()
        assert person.wrong == []
        person.context.close()
    [accepted] = Reader(own).rows("SELECT accepted_by, accepted_reason FROM regressions")
    assert accepted == {"accepted_by": "write", "accepted_reason": "a new compiler"}
    audits = [event.payload for event in EventLog.open(own).read() if isinstance(event.payload, WriteAudited)]
    assert [audit.by for audit in audits] == ["write", "write"]


def test_dark_and_light_follow_the_system_until_someone_chooses(browser: Any, url: str) -> None:
    dark = Visitor(browser, url, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark.visit("")
    assert dark.page.evaluate(ground) == "rgb(13, 18, 25)"
    dark.page.get_by_role("button", name="Light colors").click()
    assert dark.page.evaluate(ground) == "rgb(246, 247, 249)"
    dark.visit("/models")
    assert dark.page.evaluate(ground) == "rgb(246, 247, 249)"
    assert dark.wrong == []
    dark.context.close()


def test_the_keyboard_reaches_the_content_first(visitor: Visitor) -> None:
    visitor.visit("/models")
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.className") == "skip"
    visitor.page.keyboard.press("Enter")
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.closest('main') !== null")
    assert visitor.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_focus_is_never_under_the_names_of_the_matrix(visitor: Visitor) -> None:
    visitor.page.set_viewport_size(NARROW)
    visitor.visit("/matrix")
    cells = visitor.page.locator("table.heat td a")
    cells.first.focus()
    left = []
    for _ in range(cells.count()):
        if visitor.page.evaluate("document.activeElement.closest('td') !== null"):
            left.append(visitor.page.evaluate("document.activeElement.getBoundingClientRect().left"))
        visitor.page.keyboard.press("Tab")
    names = visitor.page.evaluate("document.querySelector('table.heat tbody th').getBoundingClientRect().right")
    assert len(left) > 20
    assert min(left) >= names


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, as its registry published it."""
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("npm, which fetches axe-core, is not installed")
    name = AXE.removesuffix(".tgz").replace("core-", "core@")
    # By itself npm waits five minutes, three times.
    command = [npm, "pack", "--silent", "--prefer-offline", "--fetch-timeout=60000", "--fetch-retries=1", name]
    fetched = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        pytest.skip(f"npm could not fetch axe-core: {fetched.stderr.strip()[-200:]}")
    tarball = Path(folder) / AXE
    assert base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode() == AXE_SHA512
    with tarfile.open(tarball) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, url: str, axe: str, settings: Settings, scheme: str) -> None:
    visitor = Visitor(browser, url, color_scheme=scheme)
    more = [*_details(settings), "/history?rule=round_time", "/nope", "/results?model=bert-bse"]
    # Of the colors alone the scheme decides: a page of each kind of part tells.
    chosen, only = (*PATHS, *more), ""
    if scheme == "dark":
        chosen = (
            "",
            "/models",
            "/models/bert-base",
            "/matrix",
            PATHS[8],
            PATHS[11],
            *more[:2],
            "/history?rule=round_time",
        )
        only = ", runOnly: ['color-contrast']"
    found = []
    for path in chosen:
        visitor.visit(path)
        visitor.page.evaluate(axe)
        report = visitor.page.evaluate(f"axe.run(document, {{resultTypes: ['violations']{only}}})")
        assert report["passes"], path
        found += [
            (path, violation["id"], violation["nodes"][0]["html"][:200], violation["nodes"][0]["failureSummary"][:300])
            for violation in report["violations"]
        ]
    visitor.context.close()
    assert found == []
