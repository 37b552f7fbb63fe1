"""What a run's episodes meet: a retriever and a judge. The config says which; environment variables may say where.

Whoever answers is asked what he is, and another index or judge than the run's is refused: a score means nothing without them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.judge.client import HttpJudge
from rolecast.judge.lexical import LEXICAL, LexicalJudge
from rolecast.methods.registry import judge_prompts, make_method
from rolecast.ports import EXTERNAL, IndexInfo, Judge, JudgeInfo, Retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import LocalRetriever
from rolecast.stages.run import Run
from rolecast.store.artifact import digest_of
from rolecast.store.uri import local_artifact

T = TypeVar("T")
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
    overrides = {name: _shown(os.environ[name]) for name in (RETRIEVER_URL, JUDGE_URL) if os.environ.get(name)}
    return Environment(
        str(index_of(run)), judge_of(c),
        _shown(_address(RETRIEVER_URL, c.retriever.url)) or HERE, _shown(_address(JUDGE_URL, c.judge.url)) or HERE, overrides,
    )  # fmt: skip


def index_of(run: Run) -> IndexInfo:
    """What the run's retriever must serve, read from the manifest of its index; without a digest until that is built."""
    kind = run.config.retriever.kind
    if kind == EXTERNAL:
        return IndexInfo(EXTERNAL)
    if shared := run.shared.get("retriever.index"):
        return IndexInfo(kind, shared)
    manifest = run.manifest(run.index)
    return IndexInfo(kind, digest_of(manifest) if manifest is not None else "")


def judge_of(config: RunConfig) -> str:
    """Who must judge the run, with which prompts: the same package gives the same."""
    model = config.judge.model
    return (LEXICAL if model == LEXICAL.model else JudgeInfo(model, judge_prompts())).of(make_method(config.method).asks())


def open_retriever(run: Run) -> Retriever:
    """The service, if an address is given; else the run's index in this process. `InputError` if it serves another index."""
    c, wanted = run.config.retriever, index_of(run)
    if url := _address(RETRIEVER_URL, c.url):
        service = HttpRetriever(url, patience=c.patience)
        if wanted.kind != EXTERNAL:
            require_index(_asked(service, service.info()), wanted, _shown(url))
        return service
    if c.kind == EXTERNAL:
        raise InputError(f"retriever.kind is external: name the service by retriever.url or {RETRIEVER_URL}")
    if c.index:
        folder = local_artifact(c.index, run.path / ".index")
    else:
        run.has(run.index)
        wanted, folder = index_of(run), run.index
    retriever = LocalRetriever.open(folder, c.kind)
    require_index(asyncio.run(retriever.info()), wanted, str(folder))
    return retriever


def require_index(found: IndexInfo, wanted: IndexInfo, where: str) -> None:
    if str(found) != str(wanted):
        raise InputError(
            f"the retriever at {where} serves {found or 'nothing that it can name'}, the run searches {wanted}; start it on the run's index, "
            "or make a run whose config has this one (retriever.index, retriever.kind; kind external takes what comes)"
        )


def open_judge(run: Run) -> Judge:
    """The service, if an address is given; else the lexical judge. `InputError` if it judges by another model or other prompts."""
    c = run.config.judge
    if url := _address(JUDGE_URL, c.url):
        service = HttpJudge(url, patience=c.patience)
        found = _asked(service, service.info()).of(make_method(run.config.method).asks())
        if found != judge_of(run.config):
            raise InputError(
                f"the judge at {_shown(url)} is {found}, the run's is {judge_of(run.config)}; set judge.model in the config of a new run, "
                f"or name another judge by judge.url or {JUDGE_URL}"
            )
        return service
    if c.model != LEXICAL.model:
        raise InputError(f"judge.model is {c.model}: name a judge service that asks it, by judge.url or {JUDGE_URL}")
    return LexicalJudge()


def _asked(service: HttpRetriever | HttpJudge, question: Coroutine[Any, Any, T]) -> T:
    async def asked() -> T:
        try:
            return await question
        finally:
            await service.close()  # its connections are this loop's

    return asyncio.run(asked())


def _address(variable: str, configured: str | None) -> str:
    return os.environ.get(variable) or configured or ""


def _shown(url: str) -> str:
    """An address without credentials."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if parts.netloc else url
