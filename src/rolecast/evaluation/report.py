"""The run's report: one HTML file with everything inside, to open from disk or as a pipeline artifact.

Python computes what needs no interaction (headline, tables, which metric belongs to which chart); `charts.js` and
`browser.js` in `templates/` draw the curves and the trajectory browser from embedded JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rolecast.evaluation.attribution import FAULTS
from rolecast.evaluation.display import asset, count, decimal, duration, finite, number, percent, script_json, shown
from rolecast.evaluation.latency import parts_of
from rolecast.evaluation.lines import COLOURS

Json = dict[str, Any]
EMBEDDED, BYTES = 500, 16 << 20  # episodes of a page, and what they may take in it

STAGES = {"base": "Base model", "sft": "SFT", "rl": "RL", "rl_train": "RL, training rollouts"}  # in the order of training
FAMILIES = {  # of metrics, in the order of the charts
    "reward": "Reward",
    "dev": "Dev set: EM and F1",
    "valid": "Valid actions",
    "tokens": "Length, tokens",
    "entropy": "Entropy",
    "ratio": "Importance ratio",
    "clip_fraction": "Clipped fraction",
    "kl": "KL to the reference",
    "loss": "Loss",
    "nll": "Negative log-likelihood",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "critic": "Critic",
}
ALIASES = {"length": "tokens", "clip": "clip_fraction", "rewards": "reward"}
TRACE: Json = {
    "id": "", "question": "", "type": "", "hops": 0, "golds": [], "answer": None, "status": "ok", "searches": 0,
    "retrieved": [], "gold_passages": [], "rewards": [], "measure": "em",
}  # fmt: skip
THREAD: Json = {"role": "", "probe": False}
TURN: Json = {"kind": "observation", "text": "", "tokens": 0, "sources": [], "valid": True, "logprob": None, "rewards": []}
PER_ROLE = frozenset({"valid", "entropy", "ratio", "clip_fraction", "nll"})  # families whose lines name roles


def render_report(
    summary: Mapping[str, Any], curves: Mapping[str, Sequence[Mapping[str, Any]]], traces: Mapping[str, Sequence[Json]]
) -> str:
    """One HTML page. `summary` holds the numbers, `curves` the rows of each stage's metrics, `traces` what `trace` made.

    Of the traces as many are shown as a page may hold (`embedded`). Whatever is missing is left out; numbers that are not finite count as missing.
    """
    traces = embedded(traces)
    roles = role_names(curves, traces)
    payload: Json = {
        "roles": roles,
        "stages": STAGES,
        "curves": [{"stage": stage, "charts": drawn} for stage in reversed(_ordered(curves)) if (drawn := charts(curves[stage], roles))],
        "traces": {stage: [_shown_trace(item) for item in traces[stage]] for stage in _ordered(traces)},
    }
    script = "".join(map(asset, ("dom.js", "charts.js", "browser.js")))
    environment = Environment(
        loader=PackageLoader("rolecast.evaluation", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"percent": percent, "count": count, "decimal": decimal, "duration": duration}
    method, config = summary.get("method"), summary.get("config")
    stages = stage_scores(summary)
    return environment.get_template("report.html.jinja").render(
        title=summary.get("title") or (f"Rolecast, {method}" if method else "Rolecast"),
        method=method,
        seed=summary.get("seed"),
        headline=headline(stages, _mapping(summary.get("gains"))),
        stages=stages,
        breakdowns=breakdowns(summary, stages),
        faults=fault_bars(summary, stages),
        recalls=_recalls(summary, stages),
        wrong=_mapping(summary.get("wrong")),
        parts=[{"label": stage["label"], **row} for stage in stages for row in parts_of(_mapping(summary.get("stages"))[stage["stage"]])],
        controls=_controls(summary),
        times=_times(summary),
        config=json.dumps(finite(config), indent=2, ensure_ascii=False) if config else "",
        has_curves=bool(payload["curves"]),
        has_traces=any(payload["traces"].values()),
        data=Markup(script_json(payload)),
        style=Markup(asset("report.css")),
        script=Markup(script),
        # The page's policy lets this one script run, so that even a hole in our escaping could not run model output.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def headline(stages: Sequence[Json], gains: Mapping[str, Any] = MappingProxyType({})) -> str:
    """One sentence: how the last stage's score compares with that of the stage before; with the paired difference, where `gains` (of
    `stages.gains`) has that of these two, else with whether their intervals overlap."""
    if not stages:
        return "This run has no evaluation yet."
    last, before = stages[-1], stages[-2] if len(stages) > 1 else None
    measure = _measure(last["measure"])
    if before is None or last["measure"] != before["measure"]:
        return f"{measure.capitalize()} after {last['label']} is {_with_interval(last)}{_questions(last)}."
    change = last["em"] - before["em"]
    if percent(last["em"]) == percent(before["em"]):
        sentence = f"{last['label']} leaves {measure} at {_with_interval(last)}{_questions(before, last)}"
    else:
        verb = "raises" if change > 0 else "lowers"
        sentence = f"{last['label']} {verb} {measure} from {_with_interval(before)} to {_with_interval(last)}{_questions(before, last)}"
    paired = _mapping(_mapping(_mapping(gains.get("stages")).get(last["stage"])).get(last["measure"]))
    if paired and gains.get("over") == before["stage"]:
        mean, low, high = (100 * float(paired[part]) for part in ("mean", "low", "high"))
        p = number(paired.get("p"))
        test = "" if p is None else f", McNemar's p {'< .001' if p < 0.001 else f'= {p:.3f}'.replace('0.', '.')}"
        return f"{sentence}; question by question {mean:+.1f} [{low:+.1f}, {high:+.1f}]{test}."
    bounds = before["low"], before["high"], last["low"], last["high"]
    if change and None not in bounds and last["low"] <= before["high"] and before["low"] <= last["high"]:
        sentence += "; the 95 % intervals overlap"
    return sentence + "."


def _measure(name: str) -> str:
    return "exact match" if name == "em" else name


def stage_scores(summary: Mapping[str, Any]) -> list[Json]:
    """The overall scores of every stage that has one, in the order of training."""
    results = _mapping(summary.get("stages"))
    scores = [(stage, score(results[stage])) for stage in _ordered(results)]
    extras = ("cem", "tokens_per_question", "searches_per_question")
    return [
        {
            "stage": stage,
            "label": _label(stage),
            "measure": results[stage].get("headline", "em"),
            **found,
            **{name: number(results[stage].get(name)) for name in extras},
        }
        for stage, found in scores
        if found
    ]


def breakdowns(summary: Mapping[str, Any], stages: Sequence[Json]) -> list[Json]:
    """A table by hops and one by type: for each group, the score of every stage that has it."""
    results = _mapping(summary.get("stages"))
    tables = []
    for key, title in (("by_hops", "By hops"), ("by_type", "By type")):
        parts = {stage["stage"]: _mapping(results[stage["stage"]].get(key)) for stage in stages}
        groups = sorted({group for part in parts.values() for group in part}, key=_natural)
        rows = []
        for group in groups:
            scores = [{"label": stage["label"], **(score(parts[stage["stage"]].get(group)) or {})} for stage in stages]
            rows.append({"label": _hops(str(group)) if key == "by_hops" else group, "scores": [s for s in scores if "em" in s]})
        rows = [row for row in rows if row["scores"]]
        if rows:
            tables.append({"title": title, "rows": rows})
    return tables


def fault_bars(summary: Mapping[str, Any], stages: Sequence[Json]) -> Json:
    """A bar a stage: of all its questions, the shares that failed first of what; what is left is right. `names`: those that occur."""
    results = _mapping(summary.get("stages"))
    counts = {
        stage["label"]: (_mapping(results[stage["stage"]].get("faults")), number(results[stage["stage"]].get("n"))) for stage in stages
    }
    names = [name for name in FAULTS if any(found.get(name) for found, _ in counts.values())]
    rows = [
        {
            "label": label, "n": n,
            "parts": [
                {"name": FAULTS[name], "colour": place % COLOURS, "dashed": place >= COLOURS, "count": found[name], "share": found[name] / n}
                for place, name in enumerate(names) if found.get(name)
            ],
        }
        for label, (found, n) in counts.items() if n and found
    ]  # fmt: skip
    return {"names": [FAULTS[name] for name in names], "rows": rows}


def embedded(traces: Mapping[str, Sequence[Json]]) -> dict[str, list[Json]]:
    """As many episodes as one page may hold, of each stage the first ones, shared out among the stages: `EMBEDDED`, and `BYTES` of JSON."""
    kept: dict[str, list[Json]] = {stage: [] for stage in traces}
    count, size = 0, 0
    for place in range(max(map(len, traces.values()), default=0)):
        for stage, items in traces.items():
            if place < len(items):
                count, size = count + 1, size + len(script_json(items[place]).encode())  # as the page has it, escapes included
                if count > EMBEDDED or size > BYTES:
                    return kept
                kept[stage].append(items[place])
    return kept


def score(result: Any) -> Json | None:
    """The headline score (exact match, unless the task says otherwise) with its interval and what else a table shows; None without one."""
    result = _mapping(result)
    em = number(result.get(result.get("headline", "em")))
    if em is None:
        return None
    interval = result.get("ci95")
    low, high = map(number, interval) if isinstance(interval, Sequence) and len(interval) == 2 else (None, None)
    if low is None or high is None:
        low = high = None
    return {"em": em, "low": low, "high": high, "f1": number(result.get("f1")), "n": number(result.get("n"))}


def role_names(curves: Mapping[str, Sequence[Mapping[str, Any]]], traces: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Every role once. Its place in the list is its colour everywhere, so those of the episodes come in speaking order."""
    spoken = [thread.get("role", "") for stage in _ordered(traces) for item in traces[stage] for thread in item.get("threads", ())]
    return list(dict.fromkeys([*spoken, *_measured(_metric_names(row for rows in curves.values() for row in rows))]))


def _measured(names: Iterable[str]) -> list[str]:
    """The roles that metrics name: valid/ROLE, ROLE/entropy, and OBJECTIVE/ROLE/entropy beside OBJECTIVE/entropy."""
    told: dict[str, bool] = {}  # whether it can be nothing but a role
    objectives: set[str] = set()
    for name in names:
        family, series = _family(name)
        *before, role = series.split("/")
        # Not clip_fraction/first, which is of an update's first minibatch.
        if role and family in PER_ROLE and (family == "valid" or name.endswith(f"/{family}")):
            told[role] = told.get(role, False) or bool(before) or family == "valid"
            objectives.update(before)
    return [name for name, surely in told.items() if surely or name not in objectives]


def charts(rows: Sequence[Mapping[str, Any]], roles: Sequence[str]) -> list[Json]:
    """One chart per family of metrics, one line per role; metrics of no family get a chart each, marked `other`. The metrics NAME/low and
    NAME/high are the `band` of NAME's line: [step, low, high] where it was measured."""
    by_step: dict[float, Json] = {}
    for row in rows:  # rows of one step belong together; after a resume the later one counts
        if (step := number(row.get("step"))) is not None:
            by_step[step] = {**by_step.get(step, {}), **row}
    ordered = [(int(step) if step.is_integer() else step, by_step[step]) for step in sorted(by_step)]
    found: dict[tuple[int, str], Json] = {}
    names = _metric_names(by_step.values())
    bands = {name: (f"{name}/low", f"{name}/high") for name in names if {f"{name}/low", f"{name}/high"} <= set(names)}
    for name in names:
        if any(name in bounds for bounds in bands.values()):
            continue
        family, series = _family(name)
        if family == "tokens" and series and series not in roles:  # tokens/sampled: a total, on a scale of its own
            family, series = "", name
        title = FAMILIES.get(family, "")
        if family in ("critic", ""):  # metrics with scales of their own: a chart each
            parts = series.split("/")
            series = next((part for part in parts if part in roles), "")
            title = " ".join([title, "/".join(part for part in parts if part != series)]).strip() or name
        place = list(FAMILIES).index(family) if family else len(FAMILIES)
        chart = found.setdefault((place, title), {"title": title, "other": not family, "lines": []})
        points = [[step, number(row[name])] for step, row in ordered if name in row]
        role = next((part for part in series.split("/") if part in roles), None)
        line: Json = {"name": series or "all", "role": roles.index(role) if role else None, "points": points}
        if name in bands:
            line["band"] = [[step, *(number(row.get(bound)) for bound in bands[name])] for step, row in ordered if name in row]
        # What is measured now and then is marked where it was measured.
        chart["lines"].append({**line, "marked": True} if name.startswith("dev/") else line)
    for chart in found.values():
        chart["lines"].sort(key=lambda line: len(roles) if line["role"] is None else line["role"])
    return [found[key] for key in sorted(found)]


def _family(name: str) -> tuple[str, str]:
    """The family of a metric and which of its lines this is; an unknown metric has family ""."""
    parts = name.split("/")
    if "critic" in parts:
        return "critic", "/".join(part for part in parts if part != "critic")
    if parts[0] == "dev":
        return ("dev", "/".join(parts[1:])) if re.match(r"(em|f1|cem)\b", "/".join(parts[1:])) else ("", name)
    for i, part in enumerate(parts):
        family = ALIASES.get(part, part)
        if family in FAMILIES and family != "dev":
            return family, "/".join(parts[:i] + parts[i + 1 :])
    return "", name


def _metric_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names with a number in some row. NaN and null are gaps in a line, text is no metric."""
    names: dict[str, bool] = {}
    for row in rows:
        for name, value in row.items():
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            names[name] = names.get(name, False) or numeric
    return [name for name, numeric in names.items() if numeric and name != "step"]


def _shown_trace(item: Mapping[str, Any]) -> Json:
    """The trace with its outcome, by the score that its stage is measured by, and with whatever an older trace may lack."""
    score = number(item.get("score"))
    outcome = "unknown" if score is None else "right" if score >= 1 else "wrong" if score <= 0 else "partly"
    threads = [
        {**thread, "turns": [{**TURN, **turn} for turn in thread.get("turns", ())]}
        for thread in ({**THREAD, **thread} for thread in item.get("threads", ()))
    ]
    shown = {**TRACE, **item, "threads": threads, "score": score, "outcome": outcome}
    return {**shown, "measure": _measure(shown["measure"])}


def _controls(summary: Mapping[str, Any]) -> list[Json]:
    """Controls that are scores get a bar; other objects are listed key by key."""
    rows = []
    for name, value in _mapping(summary.get("controls")).items():
        pairs = value.items() if isinstance(value, Mapping) else [("", value)]
        items = [(str(key).replace("_", " "), shown(item)) for key, item in pairs]
        rows.append({"label": str(name).replace("_", " "), "score": score(value), "values": items})
    return rows + _costs(summary)


def _recalls(summary: Mapping[str, Any], stages: Sequence[Json]) -> list[Json]:
    """Of each stage that has it, the share of gold passages that were retrieved, with its interval, also by hops."""
    rows = []
    for stage in stages:
        result = _mapping(_mapping(summary.get("stages"))[stage["stage"]])
        parts = {"": result, **{_hops(str(hops)): part for hops, part in _mapping(result.get("by_hops")).items()}}
        for label, part in parts.items():
            told = {
                "headline": "recall",
                "recall": part.get("gold_recall"),
                "ci95": part.get("gold_recall_ci95"),
                "n": part.get("gold_recall_n"),
            }
            if (found := score(told)) is not None:
                rows.append({"label": stage["label"] + (f", {label}" if label else ""), "whole": not label, "score": found})
    return rows


def _costs(summary: Mapping[str, Any]) -> list[Json]:
    """What each RL and rollout stage cost, and the longest context of each role in it."""
    rows: list[Json] = []
    for stage, cost in _mapping(_mapping(summary.get("budget")).get("stages")).items():
        told = {key: value for key, value in _mapping(cost).items() if key != "context"}
        contexts = {f"context of {role}": tokens for role, tokens in _mapping(_mapping(cost).get("context")).items()}
        items = [(str(key).replace("_", " "), shown(value)) for key, value in {**told, **contexts}.items()]
        rows.append({"label": f"{_label(stage)}, cost", "score": None, "values": items})
    return rows


def _times(summary: Mapping[str, Any]) -> list[Json]:
    """Tables of seconds: of each stage, and of what a step of RL spends them on."""
    tables = [{"title": "Wall time", "rows": _seconds({_label(stage): value for stage, value in _mapping(summary.get("seconds")).items()})}]
    for stage, parts in _mapping(summary.get("step_seconds")).items():
        tables.append({"title": f"A step of {_label(stage)}", "rows": _seconds(_mapping(parts))})
    return [table for table in tables if table["rows"]]


def _seconds(spent: Mapping[str, Any]) -> list[Json]:
    known = [(label, value) for label, given in spent.items() if (value := number(given)) is not None]
    longest = max((value for _, value in known), default=0.0) or 1.0
    return [{"label": label, "seconds": value, "share": value / longest} for label, value in known]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _ordered(stages: Iterable[str]) -> list[str]:
    """Known stages in the order of training, then the others as they come."""
    known = list(STAGES)
    return sorted(stages, key=lambda stage: known.index(stage) if stage in known else len(known))


def _label(stage: str) -> str:
    return STAGES.get(stage, str(stage).replace("_", " "))


def _hops(group: str) -> str:
    return f"{group} hop" if group == "1" else f"{group} hops"


def _natural(group: object) -> tuple[bool, float, str]:
    text = str(group)
    return not text.isdigit(), float(text) if text.isdigit() else 0.0, text


def _with_interval(result: Json) -> str:
    interval = "" if result["low"] is None else f" [{100 * result['low']:.1f}, {100 * result['high']:.1f}]"
    return percent(result["em"]) + interval


def _questions(*results: Json) -> str:
    counts = list(dict.fromkeys(result["n"] for result in results if result["n"] is not None))
    return f" on {' and '.join(map(count, counts))} held-out questions" if counts else ""
