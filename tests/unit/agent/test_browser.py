"""The pages in a browser: ask, stream, expand, every fault in words, without a fault that axe-core calls serious."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from scripted import EMPLOYER, MENTOR, ScriptedEngine, TableRetriever, said

from rolecast.agent.app import make_agent
from rolecast.agent.core import Agent
from rolecast.agent.settings import AgentSettings
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.ports import Completion, GenerateRequest, Retriever
from rolecast.rollout.render import Renderer
from rolecast.service.state import Service
from rolecast.types import Passage
from tests.chromium import SHOTS, launched, needs_chromium
from tests.live import serving

ROOT = Path(__file__).parents[3]
TOKEN = "a-token-of-sixteen-characters"
QUESTION = "Who employs the mentor of Brol Tan?"
EVIL = "<script>document.title = 'owned'</script>"
LONG = "\n".join(f"Line {n} of a long passage about {MENTOR.subject}." for n in range(40))
LINES = {
    "planner": [said("search", MENTOR.query), said("search", EMPLOYER.query, EVIL), said("search", "None")],
    "filter": [said("filter", MENTOR.sentence), said("filter", EMPLOYER.sentence)],
    "answerer": [said("answer", "Kel Dax")],
}

pytestmark = needs_chromium


class Stepped(ScriptedEngine):
    """Speaks when it is let, one turn for each `release` of `turns`."""

    failure = None

    def __init__(self, renderer: Renderer, method: Decor) -> None:
        super().__init__(renderer, method, {role: texts * 3 for role, texts in LINES.items()})
        self.turns = threading.Semaphore(0)
        self.away = False

    async def failed(self) -> Exception:
        await asyncio.Event().wait()
        raise AssertionError

    async def generate(self, request: GenerateRequest) -> Completion:
        while not self.turns.acquire(blocking=False):
            await asyncio.sleep(0.005)
        return await super().generate(request)

    def let(self, turns: int) -> None:
        self.turns.release(turns)


class Team:
    """A service, its engine, and when it may have loaded."""

    def __init__(self, renderer: Renderer) -> None:
        self.method = Decor(DecorConfig(prompts="instruct", condenser="extractive"))
        self.engine = Stepped(renderer, self.method)
        self.renderer, self.loaded = renderer, threading.Event()
        self.loaded.set()

    def open(self, settings: AgentSettings, retriever: Retriever | None) -> Agent:
        self.loaded.wait(20)
        found = Passage(MENTOR.sentence, MENTOR.subject, f"{MENTOR.sentence}\n{LONG}")
        table = {MENTOR.query: [found], EMPLOYER.query: [Passage(EMPLOYER.sentence, EMPLOYER.subject, EMPLOYER.sentence)]}
        return Agent("demo", self.method, self.engine, TableRetriever(table), self.renderer, 4096)

    @contextmanager
    def served(self, **settings: Any) -> Iterator[str]:
        with serving(*self.make(**settings)) as url:
            yield url

    def make(self, **settings: Any) -> tuple[Any, Service]:
        return make_agent(AgentSettings(run="r", **{"host": "127.0.0.1", **settings}), self.open)


@pytest.fixture
def team(renderer: Renderer) -> Team:
    return Team(renderer)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


@pytest.fixture(scope="module")
def axe() -> str:
    subprocess.run(["bash", "scripts/axe.sh"], cwd=ROOT, check=True, timeout=120)
    return (ROOT / ".tools" / "axe.min.js").read_text()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """One that reports whatever its policy stops, and every error of its script."""
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if "Content Security Policy" in message.text else None)
    page.on("request", lambda request: faults.append(request.url) if not request.url.startswith(("http://127.0.0.1:", "data:")) else None)
    yield page
    context.close()
    assert not faults


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def ask(page: Page, question: str = QUESTION) -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()


def test_asking_shows_each_turn_as_it_happens(team: Team, page: Page) -> None:
    with team.served() as url:
        page.goto(url)
        expect(page.get_by_text("What each role reads, searches and says appears here")).to_be_visible()
        shot(page, "empty")
        ask(page)
        status, turns = page.get_by_role("status"), page.locator(".turn.said")
        expect(status).to_have_text("The planner is at work.")
        expect(page.locator(".thread")).to_have_count(1)
        expect(turns).to_have_count(0)
        team.engine.let(1)
        expect(status).to_have_text("The filter is at work.")
        expect(turns).to_have_count(1)
        expect(turns.first).to_contain_text(MENTOR.query)
        shot(page, "streaming")
        team.engine.let(4)
        expect(turns).to_have_count(5)
        expect(page.locator(".thread.live")).to_have_count(1)
        page.get_by_role("button", name="Show all").first.click()
        team.engine.let(1)
        expect(status).to_contain_text("The answer: Kel Dax.")
        expect(page.locator(".thread.live")).to_have_count(0)
        expect(page.locator("pre.fold.open")).to_have_count(1)  # what was opened stays open
        expect(page.locator("#detail dl")).to_contain_text("Kel Dax")
        page.get_by_text("2 passages").click()
        expect(page.locator(".passage").first).to_contain_text("Line 39 of a long passage")
        shot(page, "answered")
        assert page.title() == "Ask the team"
        assert EVIL in page.locator("#detail").inner_text()
        page.get_by_role("link", name="Its trace").click()
        expect(page.locator("#detail dl")).to_contain_text("Kel Dax")
        expect(page.locator(".thread")).to_have_count(6)
        shot(page, "trace")
        page.get_by_role("link", name="JSON").click()
        expect(page.locator("body")).to_contain_text('"answer":"Kel Dax"')


def test_it_works_by_keyboard(team: Team, page: Page) -> None:
    with team.served() as url:
        page.goto(url)
        team.engine.let(6)
        page.keyboard.type(QUESTION)  # the question has the focus
        page.keyboard.press("Shift+Enter")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_contain_text("The answer")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Ask"
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring == "solid"
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("The planner is at work.")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # Stop
        expect(page.get_by_role("status")).to_have_text("Stopped.")
        expect(page.get_by_label("Question")).to_be_focused()


def test_a_token_is_asked_for_once_in_a_tab(team: Team, page: Page, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    with team.served(tokens_file=str(tmp_path / "tokens")) as url:
        page.goto(url)
        team.engine.let(12)
        ask(page)
        alert, token = page.get_by_role("alert"), page.get_by_label("Token")
        expect(alert).to_contain_text("This server takes no request without a token.")
        expect(token).to_be_focused()
        shot(page, "401")
        token.fill("none-of-the-tokens-there")
        page.keyboard.press("Enter")
        expect(alert).to_contain_text("This is none of the server's tokens.")
        token.fill(TOKEN)
        page.get_by_role("button", name="Use this token").click()
        expect(page.get_by_role("status")).to_contain_text("The answer")
        expect(alert).to_be_hidden()
        page.get_by_role("link", name="Your traces").click()
        row = page.locator("#list a.row")
        expect(row).to_have_count(1)
        expect(row).to_contain_text(QUESTION)
        shot(page, "traces")
        row.click()
        expect(page.locator("#detail dl")).to_contain_text("Kel Dax")
        page.goto(f"{url}/")
        page.reload()
        ask(page)
        expect(page.get_by_role("status")).to_contain_text("The answer")
        assert TOKEN not in page.content()


def test_faults_are_said_in_words(team: Team, page: Page) -> None:
    alert = page.get_by_role("alert")
    with team.served(max_live=1, max_waiting=0, max_question_characters=100) as url:
        page.goto(url)
        ask(page, " ")
        expect(alert).to_contain_text("There is no question yet.")
        ask(page, "x" * 101)
        expect(alert).to_contain_text("The question is too long. It has 101 characters, and the team takes 100.")
        shot(page, "too-long")
        other = page.context.new_page()
        other.goto(url)
        ask(other)
        expect(other.get_by_role("status")).to_have_text("The planner is at work.")
        ask(page)
        expect(alert).to_contain_text("The team is full. Try again in a moment.")
        shot(page, "429")
        other.get_by_role("button", name="Stop").click()
        expect(other.get_by_role("status")).to_have_text("Stopped.")
        other.close()
        ask(page)
        expect(page.get_by_role("status")).to_have_text("The planner is at work.")
        page.context.set_offline(True)
        page.get_by_role("button", name="Stop").click()
        ask(page)
        expect(alert).to_contain_text("The server cannot be reached.")
        shot(page, "offline")
        page.context.set_offline(False)
    page.get_by_label("Question").fill("Where?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(alert).to_contain_text("The server cannot be reached.")


def test_a_connection_that_is_lost_on_the_way_is_said(team: Team, page: Page) -> None:
    app, service = team.make()
    with serving(app, service, drain_seconds=0.2) as url:
        page.goto(url)
        ask(page)
        expect(page.get_by_role("status")).to_have_text("The planner is at work.")
    expect(page.get_by_role("alert")).to_contain_text("The connection was lost before there was an answer.")
    expect(page.locator(".thread.live")).to_have_count(0)


def test_a_page_of_a_team_that_loads_says_so_and_when_it_is_there(team: Team, page: Page) -> None:
    from rolecast.service.server import Server, listening

    team.loaded.clear()
    app, service = team.make()
    with listening("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=Server(app, service, 5.0).run, args=([sock],), daemon=True)
        thread.start()
        page.goto(f"http://127.0.0.1:{sock.getsockname()[1]}")
        expect(page.get_by_role("status")).to_contain_text("The team is loading.")
        ask(page)
        expect(page.get_by_role("alert")).to_contain_text("The team is not ready.")
        shot(page, "503")
        team.loaded.set()
        expect(page.get_by_role("status")).to_contain_text("The team is ready.")
        expect(page.get_by_role("alert")).to_be_hidden()
        service.drain()
        thread.join(10)


def test_without_tokens_there_is_no_list_for_everybody(team: Team, page: Page) -> None:
    with team.served(host="::") as url:
        page.goto(f"{url}/traces")
        expect(page.get_by_role("alert")).to_contain_text("This is not yours to see.")
    with team.served() as url:  # listens to this machine alone
        page.goto(f"{url}/traces")
        expect(page.get_by_text("There is no trace yet.")).to_be_visible()
        shot(page, "no-traces")


@contextmanager
def opened(browser: Browser, scheme: Any) -> Iterator[Page]:
    """A page in which axe may run."""
    context = browser.new_context(bypass_csp=True, color_scheme=scheme, viewport={"width": 1100, "height": 900})
    yield context.new_page()
    context.close()


def serious(page: Page, axe: str) -> list[str]:
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert found["passes"]
    return [
        f"{one['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for one in found["violations"] if one["impact"] in ("serious", "critical") for node in one["nodes"]
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scheme: Any, team: Team, browser: Browser, axe: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    with opened(browser, scheme) as page, team.served(tokens_file=str(tmp_path / "tokens")) as url:
        page.goto(url)
        assert not serious(page, axe)
        ask(page)
        expect(page.get_by_role("alert")).to_be_visible()
        assert not serious(page, axe)
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("The planner is at work.")
        assert not serious(page, axe)
        team.engine.let(6)
        expect(page.get_by_role("status")).to_contain_text("The answer")
        page.get_by_text("2 passages").click()
        assert not serious(page, axe)
        shot(page, f"answered-{scheme}")
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        shot(page, f"narrow-{scheme}")
        page.goto(f"{url}/traces")
        expect(page.locator("#list a.row")).to_have_count(1)
        assert not serious(page, axe)
        page.locator("#list a.row").click()
        expect(page.locator("#detail dl")).to_be_visible()
        assert not serious(page, axe)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_where_a_trace_is_gone(scheme: Any, team: Team, browser: Browser, axe: str) -> None:
    with opened(browser, scheme) as page, team.served(keep_traces=1) as url:
        page.goto(url)
        team.engine.let(12)
        ask(page)
        link = page.get_by_role("link", name="Its trace").get_attribute("href")
        ask(page)
        expect(page.get_by_role("link", name="Its trace")).not_to_have_attribute("href", str(link))
        gone = page.goto(f"{url}{link}")
        assert gone is not None
        assert gone.status == 410
        expect(page.get_by_role("heading")).to_have_text("This trace is gone.")
        expect(page.get_by_role("main")).to_contain_text("only the last 1 of this process")
        assert not serious(page, axe)
        shot(page, f"gone-{scheme}")
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        shot(page, f"gone-narrow-{scheme}")
        page.get_by_role("link", name="Ask").click()
        expect(page.get_by_label("Question")).to_be_focused()
