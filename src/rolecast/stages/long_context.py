"""The long-context study: a trained run tested with more and longer passages, and how long each role's context gets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig, make_config
from rolecast.data.records import read_corpus
from rolecast.errors import InputError
from rolecast.evaluation.study_page import render_contexts
from rolecast.ports import Retriever
from rolecast.reading import override
from rolecast.retriever.long import LongPassages
from rolecast.rollout.render import Renderer
from rolecast.schedule import last
from rolecast.stages.evaluate import evaluate_as
from rolecast.stages.report import origin_of
from rolecast.stages.run import Run
from rolecast.store.artifact import write_text

ROWS = 8  # at once: a cache of the whole context is kept for each


@dataclass(frozen=True, slots=True)
class Setting:
    """`tokens`: of a passage, 0 as the corpus has them. `context`: of a role, replies included. `overrides`: keys of the method."""

    tokens: int
    context: int
    questions: int
    overrides: Sequence[str] = ()

    def name(self, k: int) -> str:
        """Of its evaluations, beside the run's plain one."""
        said = [f"k{k}", f"{self.tokens}t", f"{self.context}c", f"n{self.questions}"]
        if self.overrides:
            said.append(hashlib.sha256(json.dumps(list(self.overrides)).encode()).hexdigest()[:8])
        return "-".join(said)

    def config(self, run: Run, k: int) -> RunConfig:
        """The run's, with `k` passages a search. `InputError` for a method that has no such key, or none of the overridden ones."""
        settings = run.config.model_dump(mode="json")
        for text in (f"method.k={k}", *self.overrides):
            key = text.partition("=")[0]
            if not key.startswith("method.") or key.removeprefix("method.").partition(".")[0] not in type(run.config.method).model_fields:
                raise InputError(f"{run.place}: {run.config.method.name} has no key {key!r}; see docs/config.md")
            override(settings, text)
        settings["model"]["max_context"] = self.context
        settings["eval"]["n"] = self.questions
        settings["engine"]["max_batch"] = min(ROWS, settings["engine"]["max_batch"])
        return make_config(settings, run.place)


def study_contexts(out: Path, runs: Sequence[Run], ks: Sequence[int], setting: Setting) -> dict[str, Any]:
    """Evaluates the last model of each run for every `k` of which it has no evaluation yet; writes contexts.json and contexts.html."""
    configs = [(run, k, setting.config(run, k)) for run in runs for k in ks]  # what is refused is refused before any work
    rows = [_row(run, k, _evaluated(run, k, config, setting)) for run, k, config in configs]
    made = [origin_of(run) for run in runs]
    origin = {part: list(dict.fromkeys(one for of in made for one in of[part])) for part in made[0]}
    found = {
        "seeds": sorted({run.config.seed for run in runs}), "origin": origin, "ks": list(ks), "passage_tokens": setting.tokens,
        "max_context": setting.context, "questions": setting.questions, "overrides": list(setting.overrides), "rows": rows,
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "contexts.json", json.dumps(found, indent=1))
    write_text(out / "contexts.html", render_contexts(found))
    return found


def _evaluated(run: Run, k: int, config: RunConfig, setting: Setting) -> dict[str, Any]:
    switches = {"k": k, "passage_tokens": setting.tokens, "max_context": setting.context, "overrides": list(setting.overrides)}
    around = partial(_lengthened, run, setting.tokens)
    folder = evaluate_as(run, last(run.config.schedule), setting.name(k), config, switches, around)
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def _lengthened(run: Run, tokens: int, retriever: Retriever, renderer: Renderer) -> Retriever:
    if not tokens:
        return retriever
    file = run.index / "corpus.jsonl"
    if not file.exists():
        raise InputError(f"{run.place} has no index of its own to lengthen passages from; give --passage-tokens 0 to take them as they are")
    return LongPassages(retriever, read_corpus(file), tokens, lambda text: len(renderer.encode(renderer.plain(text))))


def _row(run: Run, k: int, result: dict[str, Any]) -> dict[str, Any]:
    asked = sum(result["status"].values())
    return {
        "run": run.path.name, "method": run.config.method.name, "seed": run.config.seed, "k": k, "measure": result["headline"],
        "score": result[result["headline"]], "ci95": result["ci95"], "context": result["cost"]["context"],
        "cut": result["status"].get("length", 0) / asked, "searches": result["searches_per_question"],
        "prompt": result["cost"]["prompt"] / asked, "n": result["n"],
    }  # fmt: skip
