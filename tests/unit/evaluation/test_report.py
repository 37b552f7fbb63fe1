import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from rolecast.evaluation.report import _controls, charts, embedded, fault_bars, headline, render_report, role_names, stage_scores

NAN = float("nan")


def scores(em: float, low: float, high: float, n: int = 1008) -> dict[str, Any]:
    return {"em": em, "f1": em + 0.02, "n": n, "ci95": [low, high]}


SUMMARY: dict[str, Any] = {
    "method": "decor",
    "seed": 7,
    "title": "DECOR <small>",
    "stages": {
        "rl": {  # written before sft, as a summary with sorted keys has it
            **scores(0.93, 0.912, 0.945),
            "cem": 0.94,
            "tokens_per_question": 251.8,
            "searches_per_question": 2.7,
            "by_hops": {"10": scores(0.5, 0.4, 0.6, 10), "1": scores(0.99, 0.97, 1.0, 300)},
            "by_type": {"chain": scores(0.9, 0.88, 0.92)},
        },
        "sft": {**scores(0.452, 0.421, 0.483), "by_hops": {"1": scores(0.7, 0.66, 0.74, 300)}, "by_type": {}},
    },
    "controls": {"closed_book": {"em": 0.031, "f1": 0.05, "n": 1008, "ci95": [0.02, 0.04]}, "sampled_tokens": 3210000.0, "nothing": None},
    "seconds": {"sft": 312.4, "rl": 4210.7},
    "config": {"rl": {"updates": 200}},
}
CURVES: dict[str, Any] = {
    "sft": [{"step": 10, "loss": 2.5, "filter/nll": 2.0}],
    "rl": [
        {
            "step": 2,
            "reward/planner": 0.2,
            "planner/entropy": 0.4,
            "entropy": 0.5,
            "grad_norm": NAN,
            "critic/loss": 1.0,
            "tokens/sampled": 9e6,
        },
        {"step": 1, "reward/planner": 0.1, "planner/ratio": 1.0, "dev/em": 0.4, "dev/f1": 0.5, "grad_norm": float("inf"), "note": "text"},
        {"step": 2, "dev/em": 0.6, "valid/filter": 1.0, "tokens/filter": 12.0, "seconds/rollout": 3.0, "lr": None},
    ],
}
TRACES: dict[str, Any] = {
    "rl": [
        {
            "id": "t", "question": "Who?", "type": "chain", "hops": 1, "golds": ["Vrek Stom"], "answer": "the vrek stom", "status": "ok",
            "measure": "em", "score": 1.0,
            "searches": 1, "retrieved": ["p1"], "gold_passages": ["p1"],
            "rewards": [{"name": "team.em", "value": NAN, "source": "text", "reason": ""}],
            "threads": [
                {"id": "t#0", "role": "planner", "probe": False, "turns": [
                    {"kind": "observation", "text": "prompt", "sources": ["question"], "tokens": 3},
                    {"kind": "action", "id": "t/a0", "text": "query", "tokens": 2, "valid": True, "finish": "stop", "logprob": -1.0, "rewards": []},
                ]},
            ],
        }
    ]
}  # fmt: skip
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 & \" '"


class Page(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and data.strip():
            self.scripts.append(data)
        elif not self.tags or self.tags[-1][0] != "style":
            self.text += data

    @property
    def data(self) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.scripts[0], parse_constant=refuse)


def page(summary: Any = SUMMARY, curves: Any = CURVES, traces: Any = TRACES) -> Page:
    return Page(render_report(summary, curves, traces))


def test_content() -> None:
    found = page()
    assert "RL raises exact match from 45.2 % [42.1, 48.3] to 93.0 % [91.2, 94.5] on 1,008 held-out questions." in found.text
    for expected in (
        "DECOR <small>",
        "decor",
        "By hops",
        "1 hop",
        "By type",
        "chain",
        "closed book",
        "3,210,000",
        "1 h 10 min",
        '"updates": 200',
    ):
        assert expected in found.text
    assert found.text.index("1 hop") < found.text.index("10 hops")
    assert [curve["stage"] for curve in found.data["curves"]] == ["rl", "sft"]
    assert found.data["traces"]["rl"][0]["outcome"] == "right"


@pytest.mark.parametrize(
    ("score", "outcome"), [(1.0, "right"), (0.62, "partly"), (0.0, "wrong"), (-1.0, "wrong"), (None, "unknown"), (NAN, "unknown")]
)
def test_an_episode_is_marked_by_the_score_that_its_stage_is_measured_by(score: float | None, outcome: str) -> None:
    """Whatever its answer is: here it is the gold one."""
    [shown] = page(traces={"plan": [{**TRACES["rl"][0], "measure": "recall", "score": score}]}).data["traces"]["plan"]
    assert (shown["outcome"], shown["measure"]) == (outcome, "recall")


def test_intervals_are_drawn() -> None:
    styles = [attributes["style"] for _, attributes in page().tags if attributes.get("class") == "whisker"]
    assert "left: 91.20%; width: 3.30%" in styles


def test_is_deterministic() -> None:
    assert render_report(SUMMARY, CURVES, TRACES) == render_report(copy.deepcopy(SUMMARY), CURVES, TRACES)


def test_model_output_cannot_become_markup() -> None:
    plain = page()
    traces = copy.deepcopy(TRACES)
    episode = traces["rl"][0]
    episode |= {"question": HOSTILE, "answer": HOSTILE, "golds": [HOSTILE], "retrieved": [HOSTILE], "type": HOSTILE}
    episode["threads"][0]["turns"][0] |= {"text": HOSTILE, "sources": [HOSTILE]}
    summary = {**SUMMARY, "title": HOSTILE, "method": HOSTILE, "config": {HOSTILE: HOSTILE}, "controls": {HOSTILE: HOSTILE}}
    hostile = page(summary, {**CURVES, "rl": [*CURVES["rl"], {"step": 3, HOSTILE: 1.0}]}, traces)
    assert [tag for tag, _ in hostile.tags if tag in ("script", "img")] == ["script", "script"]
    assert len(hostile.scripts) == len(plain.scripts) == 2
    assert hostile.scripts[1] == plain.scripts[1]
    assert hostile.data["traces"]["rl"][0]["question"] == HOSTILE
    assert "<" not in hostile.scripts[0]
    assert "\u2028" not in hostile.scripts[0]


def test_the_policy_allows_exactly_our_script() -> None:
    found = page()
    [policy] = [a["content"] for tag, a in found.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(found.scripts[1].encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_the_script_never_writes_markup() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", page().scripts[1])


def test_no_external_resource() -> None:
    html = render_report(SUMMARY, CURVES, TRACES)
    assert not re.search(r"https?:|\burl\(|@import|\bfetch\(|XMLHttpRequest", html)
    for tag, attributes in Page(html).tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "data:").startswith("data:"), tag


@pytest.mark.parametrize("key", [None, *SUMMARY])
def test_tolerates_a_summary_with_missing_keys(key: str | None) -> None:
    page({name: value for name, value in SUMMARY.items() if key is not None and name != key})


def test_tolerates_an_empty_run() -> None:
    found = page({}, {}, {})
    assert "This run has no evaluation yet." in found.text
    assert "Trajectories" not in found.text


def test_tolerates_partial_scores_rows_and_traces() -> None:
    summary = {"stages": {"sft": {}, "rl": {"em": 0.5, "f1": None, "ci95": None, "by_hops": {"2": {"em": 0.5}, "3": {"f1": 0.5}}}}}
    traces = {"rl": [{"id": "x"}, {"question": "q", "threads": [{"role": "planner"}, {"turns": [{"kind": "action", "text": "y"}]}]}]}
    found = page(summary, {"rl": [{}, {"step": 1}, {"loss": 1.0}], "sft": []}, traces)
    assert "Exact match after RL is 50.0 %." in found.text
    assert "2 hops" in found.text
    assert "3 hops" not in found.text
    assert found.data["curves"] == []
    first, second = found.data["traces"]["rl"]
    assert (first["score"], first["outcome"]) == (None, "unknown")
    assert first["threads"] == []
    assert second["threads"][1]["turns"][0]["rewards"] == []


def test_nan_and_infinity_become_null() -> None:
    summary = {**SUMMARY, "stages": {"rl": {**scores(0.5, NAN, 1.0), "cem": NAN}}, "controls": {"x": NAN}, "config": {"x": [NAN, 1]}}
    found = page(summary)
    assert not re.search(r"\bnan\b", found.text, re.IGNORECASE)
    [norm] = [chart for chart in found.data["curves"][0]["charts"] if chart["title"] == "Gradient norm"]
    assert norm["lines"][0]["points"] == [[1, None], [2, None]]
    assert found.data["traces"]["rl"][0]["rewards"][0]["value"] is None


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ({"rl": scores(0.3, 0.2, 0.4, 8), "sft": scores(0.5, 0.45, 0.55, 9)}, "RL lowers exact match from 50.0 % [45.0, 55.0] to 30.0 %"),
        ({"sft": scores(0.5, 0.45, 0.55), "rl": scores(0.52, 0.47, 0.57)}, "; the 95 % intervals overlap."),
        ({"sft": scores(0.5, 0.45, 0.55), "rl": scores(0.5, 0.45, 0.55)}, "RL leaves exact match at 50.0 %"),
        ({"sft": scores(0.5, 0.45, 0.55, 504), "rl": scores(0.9, 0.8, 0.95)}, "on 504 and 1,008 held-out questions."),
        ({"sft": {"em": 0.5}}, "Exact match after SFT is 50.0 %."),
        ({}, "This run has no evaluation yet."),
    ],
)
def test_headline(stages: dict[str, Any], expected: str) -> None:
    assert expected in headline(stage_scores({"stages": stages}))


def test_headline_tells_the_paired_difference_of_the_two_that_it_compares() -> None:
    stages = stage_scores({"stages": {"sft": scores(0.5, 0.45, 0.55), "rl": scores(0.52, 0.47, 0.57)}})
    gains = {"over": "sft", "stages": {"rl": {"em": {"mean": 0.02, "low": 0.005, "high": 0.035, "n": 1008}}}}
    assert headline(stages, gains).endswith("; question by question +2.0 [+0.5, +3.5].")
    assert "overlap" in headline(stages, {**gains, "over": "other"})


def test_charts_by_family_and_role() -> None:
    roles = role_names(CURVES, TRACES)
    assert roles == ["planner", "filter"]
    found = {chart["title"]: chart for chart in charts(CURVES["rl"], roles)}
    assert list(found) == [
        "Reward", "Dev set: EM and F1", "Valid actions", "Length, tokens", "Entropy", "Importance ratio", "Gradient norm", "Critic loss",
        "seconds/rollout", "tokens/sampled",
    ]  # fmt: skip
    assert [title for title, chart in found.items() if chart["other"]] == ["seconds/rollout", "tokens/sampled"]
    assert found["Reward"]["lines"] == [{"name": "planner", "role": 0, "points": [[1, 0.1], [2, 0.2]]}]
    assert found["Length, tokens"]["lines"][0]["role"] == 1
    assert [line["name"] for line in found["Entropy"]["lines"]] == ["planner", "all"]
    assert [line["name"] for line in found["Dev set: EM and F1"]["lines"]] == ["em", "f1"]


SEVERAL = {  # objectives, each with a role's share of its numbers
    "step": 1, "search/entropy": 0.5, "search/scout/entropy": 0.5, "answer/entropy": 0.4, "answer/teller/entropy": 0.4,
    "search/clip_fraction": 0.1, "search/clip_fraction/first": 0.0, "search/critic/loss": 2.0, "valid/teller": 1.0,
}  # fmt: skip


def test_a_dev_curve_has_markers_and_the_interval_as_its_band() -> None:
    rows = [
        {"step": 0, "dev/em": 0.4, "dev/em/low": 0.3, "dev/em/high": 0.5, "dev/f1": 0.6, "reward": 0.1},
        {"step": 1, "reward": 0.2},
        {"step": 2, "dev/em": 0.5, "dev/f1": 0.7},  # before intervals were kept
    ]
    reward, dev = charts(rows, [])
    assert [line["name"] for line in dev["lines"]] == ["em", "f1"]
    em, f1 = dev["lines"]
    assert em["band"] == [[0, 0.3, 0.5], [2, None, None]]
    assert (em["marked"], f1["marked"]) == (True, True)
    assert "band" not in f1
    assert "marked" not in reward["lines"][0]


def test_objectives_are_no_roles_and_their_lines_have_their_roles_colours() -> None:
    roles = role_names({"duet": [SEVERAL]}, {})
    assert roles == ["scout", "teller"]
    found = {chart["title"]: {line["name"]: line["role"] for line in chart["lines"]} for chart in charts([SEVERAL], roles)}
    assert found["Entropy"] == {"search/scout": 0, "answer/teller": 1, "search": None, "answer": None}
    assert found["Clipped fraction"] == {"search": None, "search/first": None}
    assert found["Critic search/loss"] == {"all": None}
    assert role_names({"rl": [{"clip_fraction": 0.1, "clip_fraction/first": 0.0, "planner/clip_fraction": 0.1}]}, {}) == ["planner"]


def test_an_objective_may_have_its_roles_name() -> None:
    assert role_names({"duet": [{"scout/nll": 1.0, "scout/scout/nll": 1.0, "teller/nll": 1.0, "teller/teller/nll": 1.0}]}, {}) == [
        "scout",
        "teller",
    ]


def test_rows_of_one_step_are_merged_and_the_later_counts() -> None:
    [chart] = charts([{"step": 1, "loss": 1.0}, {"step": 1, "loss": 2.0}, {"step": 1, "note": "x"}], [])
    assert chart["lines"] == [{"name": "all", "role": None, "points": [[1, 2.0]]}]


def test_the_page_tells_what_each_stage_of_rl_cost() -> None:
    spent = {"sampled": 4000, "judge_calls": 12, "context": {"planner": 321}, "ended": "budget"}
    rows = _controls({"budget": {"tokens": 5000, "stages": {"rl": spent}}})
    assert rows == [
        {"label": "RL, cost", "score": None, "values": [("sampled", "4,000"), ("judge calls", "12"), ("ended", "budget"), ("context of planner", "321")]}
    ]  # fmt: skip
    assert "context of planner" in render_report({**SUMMARY, "budget": {"stages": {"rl": spent}}}, {}, {})


def test_the_page_embeds_no_more_episodes_than_it_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {"sft": [{"id": n} for n in range(400)], "rl": [{"id": n} for n in range(300)]}
    kept = embedded(many)
    assert (kept["sft"], kept["rl"]) == (many["sft"][:250], many["rl"][:250])
    monkeypatch.setattr("rolecast.evaluation.report.BYTES", 100)
    assert [len(items) for items in embedded({"sft": [{"id": "x" * 30}] * 9, "rl": []}).values()] == [2, 0]
    page = render_report({"stages": {"rl": {"em": 0.5}}}, {}, {"rl": [{"id": "x" * 30, "question": f"number {n}?"} for n in range(9)]})
    assert "number 0?" in page
    assert "number 5?" not in page


WRONG = {
    "id": "rl-q1", "question": "Who <b>?", "about": "chain", "answer": None, "golds": ["Kel", "Dax"], "f1": "25", "fault": "answerer erred",
    "queries": ["who"], "found": "1 of 2",
}  # fmt: skip


def test_wrong_answers_stand_in_the_report_itself_and_it_says_where_the_rest_is() -> None:
    summary = {"stages": {"rl": {"em": 0.5, "n": 8, "faults": {"answerer_erred": 4}}}}
    told = {"first": "wrong/rl-0001.html", "count": 4, "rows": [WRONG], "place": "runs/demo/wrong"}
    page = render_report({**summary, "wrong": {"rl": told}}, {}, {})
    assert 'href="#wrong-rl">The first 1 of 4 wrong answers of rl</a>' in page
    assert '<details class="card wide" id="wrong-rl">' in page
    assert "Who &lt;b&gt;?" in page
    assert 'all 4 are on <a href="wrong/rl-0001.html">pages beside this report</a>, in runs/demo/wrong.' in page
    page = render_report({**summary, "wrong": {"rl": {**told, "count": 1}}}, {}, {})
    assert 'href="#wrong-rl">All 1 wrong answers of rl</a>' in page
    assert "wrong/rl-0001.html" not in page


def test_what_failed_first_is_a_figure_over_all_questions() -> None:
    result = {
        "em": 0.5,
        "n": 8,
        "faults": {"planner_never_asked": 3, "answerer_erred": 1},
        "gold_recall": 0.75,
        "gold_recall_ci95": [0.5, 0.9],
    }
    summary = {
        "stages": {"sft": {"em": 1.0, "n": 8, "faults": {}}, "rl": result},
        "wrong": {"rl": {"first": "wrong/rl-0001.html", "count": 4, "rows": [WRONG], "place": "runs/demo/wrong"}},
    }
    found = fault_bars(summary, stage_scores(summary))
    assert found["names"] == ["planner never asked", "answerer erred"]
    [bar] = found["rows"]
    assert [(part["name"], part["count"], part["share"]) for part in bar["parts"]] == [
        ("planner never asked", 3, 0.375),
        ("answerer erred", 1, 0.125),
    ]
    page = render_report(summary, {}, {})
    assert 'title="planner never asked: 3 of 8"' in page
    assert 'href="wrong/rl-0001.html"' in page
    assert "Gold passages that were retrieved" in page
    assert "[50.0, 90.0]" in page
    assert "What went wrong first" not in render_report({"stages": {"rl": {"em": 0.5}}}, {}, {})
