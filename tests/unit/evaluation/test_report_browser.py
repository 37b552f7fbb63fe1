"""The report in a browser: tokens coloured by what training saw of them, curves and what they read out, filters, without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from rolecast.evaluation.report import render_report
from tests.chromium import SHOTS, launched, needs_chromium

EVIL = "<script>document.title = 'owned'</script>"
NAN = float("nan")

pytestmark = needs_chromium


def said(id: str, text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "action", "id": id, "text": text, "tokens": 2, "valid": True, "finish": "stop", "logprob": -1.0, "rewards": [], **more}


def episode(id: str, question: str, answer: str, score: float, *turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    asked = {"kind": "observation", "text": f"Question: {question}", "sources": ["question"], "tokens": 3}
    return {
        "id": id, "question": question, "type": "chain", "hops": 1, "golds": ["Kel Dax"], "answer": answer, "status": "ok", "measure": "em",
        "score": score, "searches": 1, "retrieved": ["p1", "p1"], "gold_passages": ["p1", "p2"], "rewards": [],
        "threads": [{"id": f"{id}#0", "role": "planner", "probe": False, "turns": [asked, *turns]}], **more,
    }  # fmt: skip


# Of each measure the value that is furthest from its middle has all of the colour there is, 70 %.
NUMBERS = {
    "pieces": ["<search>", "Brol", " Tan", EVIL],
    "advantage": [2.0, -1.0, 0.0, 0.5],
    "ratio": [1.0, 2.0, 0.5, 2**0.5],  # on a scale of logarithms
    "entropy": [0.0, 0.4, 0.1, 0.2],
}
LOOKED = episode("looked", "Who employs Brol Tan?", "Kel Dax", 1.0, said("a0", "".join(NUMBERS["pieces"]), of_tokens=NUMBERS), step=4)
BROKEN = {**NUMBERS, "ratio": [NAN, 2.0, float("inf"), 1.0]}
LOST = episode("lost", "Who lost a number?", "Vrek Stom", 0.0, said("b0", "x", of_tokens=BROKEN), step=4, hops=2)
PLAIN = episode("plain", "Who was not trained on?", "Vrek Stom", 0.0, said("c0", "<answer>Vrek Stom</answer>", valid=False), type="fork")
CURVES = {
    "rl": [
        {"step": 0, "dev/em": 0.4, "dev/em/low": 0.3, "dev/em/high": 0.5, "dev/f1": 0.6},
        *(
            {"step": step, "reward/planner": step / 100, "reward/filter": 0.5, "grad_norm": NAN if step == 3 else 1.0}
            for step in range(1, 61)
        ),
        {"step": 60, "dev/em": 0.5, "dev/em/low": 0.4, "dev/em/high": 0.6, "dev/f1": 0.7, "seconds/rollout": 3.0},
    ]
}
STAGE = {"em": 0.5, "f1": 0.6, "n": 2, "ci95": [0.1, 0.9]}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The report's page, which asks for nothing but its file, and whose script has no fault."""
    html = render_report({"method": "decor", "stages": {"rl": STAGE}}, CURVES, {"rl": [LOOKED, LOST, PLAIN]})
    (tmp_path / "report.html").write_text(html)
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: faults.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
    page.goto((tmp_path / "report.html").as_uri())
    yield page
    title = page.title()
    context.close()
    assert not faults
    assert title == "Rolecast, decor"  # no model's text ran


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def shares(page: Page) -> list[tuple[str, int]]:
    """Of each token the colour that it is mixed from, and how much of it, in per cent."""
    found = [re.search(r"var\((--role-\d)\) (\d+)%", token.get_attribute("style") or "") for token in page.locator(".token").all()]
    return [(one[1], int(one[2])) if one else ("", 0) for one in found]


def chart(page: Page, title: str) -> Locator:
    return page.locator("figure.chart").filter(has=page.get_by_text(title, exact=True))


def test_tokens_are_coloured_by_what_training_saw_of_them(page: Page) -> None:
    expect(page.locator("h3.question")).to_contain_text("Who employs Brol Tan?")
    assert page.locator(".token").all_inner_texts() == NUMBERS["pieces"]  # model output as text
    assert shares(page) == [("--role-0", 70), ("--role-5", 35), ("--role-0", 0), ("--role-0", 18)]  # 70 · .5 / 2 = 17.5
    scale = page.locator(".heat .scale")
    expect(scale).to_have_text("−2.000+2.000")
    assert page.locator(".token").nth(1).get_attribute("title") == '"Brol"\nadvantage −1.000\nratio 2.000\nentropy 0.400'
    shot(page, "report")
    page.get_by_label("Colour tokens by").select_option("ratio")
    assert shares(page) == [("--role-0", 0), ("--role-0", 70), ("--role-5", 70), ("--role-0", 35)]
    expect(scale).to_have_text("0.5002.000")
    page.get_by_label("Colour tokens by").select_option("entropy")
    assert shares(page) == [("--role-1", 0), ("--role-1", 70), ("--role-1", 18), ("--role-1", 35)]  # 70 · .1 / .4 = 17.5
    expect(scale).to_have_text("0.0000.400")
    page.get_by_label("Colour tokens by").select_option("nothing")
    assert shares(page) == [("", 0)] * 4
    expect(scale).to_have_text("")


def test_a_token_without_a_number_has_no_colour_and_the_others_keep_theirs(page: Page) -> None:
    page.get_by_role("button", name="Who lost a number?").click()
    page.get_by_label("Colour tokens by").select_option("ratio")
    assert shares(page) == [("", 0), ("--role-0", 70), ("", 0), ("--role-0", 0)]
    assert "ratio –" in (page.locator(".token").first.get_attribute("title") or "")
    expect(page.locator(".heat .scale")).to_have_text("0.5002.000")


def test_episodes_are_found_and_opened(page: Page) -> None:
    rows, found = page.locator("#list button.row"), page.locator("#found")
    expect(found).to_have_text("3 of 3, 33 % right")
    page.get_by_label("Text").fill("not trained")
    expect(rows).to_have_count(1)
    expect(page.locator("h3.question")).to_contain_text("Who was not trained on?")
    expect(page.locator(".heat")).to_have_count(0)  # nothing to colour
    expect(page.locator(".turn.said.invalid .flag")).to_have_text("✗ invalid")
    expect(page.locator(".turn.said .tag").first).to_have_text("<answer>")
    expect(page.locator("#detail dl")).to_contain_text("1 of 2 gold")
    page.get_by_label("Text").fill("")
    page.get_by_label("Outcome").select_option("wrong")
    expect(found).to_have_text("2 of 3, 0 % right")
    page.get_by_label("Hops").select_option("2")
    expect(rows).to_have_count(1)
    page.get_by_label("Type").select_option("fork")
    expect(page.locator("#detail")).to_have_text("No trajectory matches the filters.")
    page.get_by_label("Type").select_option("")
    page.get_by_label("Hops").select_option("")
    page.get_by_label("Outcome").select_option("")
    rows.first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("h3.question")).to_contain_text("Who lost a number?")
    expect(page.locator("#list [aria-current]")).to_contain_text("Who lost a number?")


def test_curves_are_drawn_and_read_out(page: Page) -> None:
    dev, reward, norm = (chart(page, title) for title in ("Dev set: EM and F1", "Reward", "Gradient norm"))
    assert dev.locator("path.curve[d^='M']").count() >= 2
    expect(dev.locator("circle.marker")).to_have_count(4)
    expect(dev.locator("path.band")).to_have_count(1)
    corners = re.findall(r"[\d.]+ [\d.]+", dev.locator("path.band").get_attribute("d") or "")
    assert len(corners) == 4  # two steps, low and high
    expect(dev.locator(".key").first).to_contain_text("0.500 [0.400, 0.600]")
    expect(norm).to_contain_text("1 value not finite")
    assert (norm.locator("svg[role=img] path.curve").get_attribute("d") or "").count("M") == 2  # a gap
    reward.locator("svg[role=img]").focus()
    page.keyboard.press("ArrowRight")  # to the last step
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    for one in (reward, dev):  # all charts of a stage show one step
        expect(one.locator(".at")).to_have_text("step 50")
    expect(reward.locator(".key").first).to_contain_text("0.50")
    expect(dev.locator(".key").first).to_contain_text("0.400 [0.300, 0.500]")  # the latest before
    shot(page, "curves")
    before = reward.locator("svg[role=img] path.curve").first.get_attribute("d")
    page.get_by_label("Smoothing").fill("0.9")
    expect(page.locator("#smoothing-value")).to_have_text("0.9")
    assert reward.locator("svg[role=img] path.curve").first.get_attribute("d") != before
    assert reward.locator("path.raw").first.get_attribute("d") == before  # what was measured stays, behind
    assert dev.locator("path.raw").first.get_attribute("d") == ""  # too few to be smoothed
    page.get_by_text("Other metrics (1)").click()
    expect(chart(page, "seconds/rollout")).to_be_visible()


def test_it_is_one_column_on_a_telephone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shot(page, "narrow")
