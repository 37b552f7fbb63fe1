"""Opens the retriever and the judge that answer a run's episodes.

Whoever answers is asked what he is, and another index or judge than the run's is refused: a score means nothing without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from rolecast.errors import InputError
from rolecast.judge.client import HttpJudge
from rolecast.judge.lexical import LEXICAL, LexicalJudge
from rolecast.methods.registry import make_method
from rolecast.ports import EXTERNAL, IndexInfo, Judge, Retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import LocalRetriever
from rolecast.retriever.live.search import LiveRetriever
from rolecast.retriever.live.settings import LIVE
from rolecast.stages.environment import JUDGE_URL, RETRIEVER_URL, address, index_of, judge_of, shown
from rolecast.stages.run import Run
from rolecast.store.local import LocalStore
from rolecast.store.uri import local_artifact

T = TypeVar("T")


def open_retriever(run: Run) -> Retriever:
    """The service, if an address is given; else the run's index, or its search engine, from this process. `InputError` if a service has
    another one. What an engine says is kept in the run."""
    c, wanted = run.config.retriever, index_of(run)
    if url := address(RETRIEVER_URL, c.url):
        service = HttpRetriever(url, patience=c.patience)
        if wanted.kind != EXTERNAL:
            require_index(_asked(service, service.info()), wanted, shown(url))
        return service
    if c.kind == LIVE:
        assert c.live is not None
        return LiveRetriever(c.live, store=run.store or LocalStore(run.path), encoder=c.encoder)
    if c.kind == EXTERNAL:
        raise InputError(f"retriever.kind is external: name the service by retriever.url or {RETRIEVER_URL}")
    encoder = c.encoder if Path(c.encoder).is_dir() else None
    if not c.index:
        run.has(run.index)
        return LocalRetriever.open(run.index, c.kind, encoder)
    folder = local_artifact(c.index, run.path / ".index")
    retriever = LocalRetriever.open(folder, c.kind, encoder)
    require_index(_now(retriever.info()), wanted, str(folder))
    return retriever


def require_index(found: IndexInfo, wanted: IndexInfo, where: str) -> None:
    if str(found) != str(wanted):
        raise InputError(
            f"the retriever at {where} serves {found or 'nothing that it can name'}, the run searches {wanted}; start it on the run's index, "
            "or make a run whose config has this one (retriever.index, retriever.kind; kind external takes what comes)"
        )


def open_judge(run: Run, also: Collection[str] = ()) -> Judge:
    """The service, if an address is given; else the lexical judge. `InputError` if it judges by another model or other prompts. `also`: kinds
    that it is asked for beside the method's."""
    c = run.config.judge
    if url := address(JUDGE_URL, c.url):
        service = HttpJudge(url, patience=c.patience)
        kinds = {*make_method(run.config.method).asks(), *also}
        found, wanted = _asked(service, service.info()).of(kinds), judge_of(run.config, also)
        if found != wanted:
            raise InputError(
                f"the judge at {shown(url)} is {found}, the run's is {wanted}; set judge.model in the config of a new run, "
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

    return _now(asked())


def _now(question: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: a service opens its team inside a loop, where there can be no second one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, question).result()
