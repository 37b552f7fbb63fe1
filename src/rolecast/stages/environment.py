"""What a run's episodes meet: a retriever and a judge. The config says which; environment variables may say where.

Nothing is opened and nobody is asked here, so that it can be told where neither client is installed (`stages.services`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from rolecast.config import RunConfig
from rolecast.judge.lexical import LEXICAL
from rolecast.methods.registry import judge_prompts, make_method
from rolecast.ports import EXTERNAL, IndexInfo, JudgeInfo
from rolecast.retriever.live.settings import LIVE
from rolecast.stages.run import Run
from rolecast.store.artifact import digest_of

RETRIEVER_URL, JUDGE_URL = "ROLECAST_RETRIEVER_URL", "ROLECAST_JUDGE_URL"
HERE = "here"  # the address of what answers in this process


@dataclass(frozen=True, slots=True)
class Environment:
    """`index`, `judged_by`: what answers, as two sides compare it. The addresses are where this process finds it."""

    index: str
    judged_by: str
    retriever: str
    judge: str
    overrides: Mapping[str, str]  # variables that took the place of the config's addresses


def environment_of(run: Run) -> Environment:
    """As the config and this process's variables have it; nobody is asked."""
    c = run.config
    overrides = {name: shown(os.environ[name]) for name in (RETRIEVER_URL, JUDGE_URL) if os.environ.get(name)}
    return Environment(
        str(index_of(run)), judge_of(c),
        shown(address(RETRIEVER_URL, c.retriever.url)) or HERE, shown(address(JUDGE_URL, c.judge.url)) or HERE, overrides,
    )  # fmt: skip


def index_of(run: Run) -> IndexInfo:
    """What the run's retriever must serve, read from the manifest of its index; without a digest until that is built."""
    kind = run.config.retriever.kind
    if kind == EXTERNAL:
        return IndexInfo(EXTERNAL)
    if (live := run.config.retriever.live) is not None:
        return IndexInfo(LIVE, live.name)
    if shared := run.shared.get("retriever.index"):
        return IndexInfo(kind, shared)
    manifest = run.manifest(run.index)
    return IndexInfo(kind, digest_of(manifest) if manifest is not None else "")


def judge_of(config: RunConfig, also: Collection[str] = ()) -> str:
    """Who must judge the run, with which prompts: the same package gives the same. `also`: kinds beside the method's."""
    model = config.judge.model
    return (LEXICAL if model == LEXICAL.model else JudgeInfo(model, judge_prompts())).of({*make_method(config.method).asks(), *also})


def address(variable: str, configured: str | None) -> str:
    return os.environ.get(variable) or configured or ""


def shown(url: str) -> str:
    """An address without credentials."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if parts.netloc else url
