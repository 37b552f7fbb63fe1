"""A run's retriever and judge: the config says which, variables may say where, and another one than the run's is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.judge.app import make_judge
from rolecast.judge.client import HttpJudge
from rolecast.judge.lexical import LexicalJudge
from rolecast.judge.settings import JudgeSettings
from rolecast.retriever.app import make_retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.stages.environment import environment_of, index_of, judge_of
from rolecast.stages.index import index
from rolecast.stages.run import Run, create
from rolecast.stages.services import open_judge, open_retriever
from rolecast.store.artifact import MANIFEST, digest_of
from rolecast.types import Passage
from tests.live import serving

PASSAGES = [Passage(str(n), "", f"passage number {n}") for n in range(8)]
OTHERS = [Passage(str(n), "", f"another text {n}") for n in range(8)]


@pytest.fixture(autouse=True)
def no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLECAST_RETRIEVER_URL", raising=False)
    monkeypatch.delenv("ROLECAST_JUDGE_URL", raising=False)


def run_with(folder: Path, passages: list[Passage] = PASSAGES, **sections: Any) -> Run:
    run = create(folder / "run", make_config(sections, "here"))
    build_index(passages, run.index, "bm25")
    return run


@contextmanager
def retriever_of(folder: Path, passages: list[Passage]) -> Iterator[str]:
    build_index(passages, folder / "served", "bm25")
    with serving(*make_retriever(RetrieverSettings(index=str(folder / "served")))) as url:
        yield url


@contextmanager
def judge_with(model: str) -> Iterator[str]:
    settings = JudgeSettings(judge_backend="openai", judge_openai_url="http://127.0.0.1:9/v1", judge_openai_model=model)
    with serving(*make_judge(settings)) as url:
        yield url


def test_without_addresses_index_and_judge_are_here(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    assert isinstance(open_retriever(run), LocalRetriever)

    async def in_a_loop() -> None:  # as a service opens its team
        assert isinstance(open_retriever(run), LocalRetriever)

    asyncio.run(in_a_loop())
    assert isinstance(open_judge(run), LexicalJudge)
    about = environment_of(run)
    assert (about.retriever, about.judge, about.overrides) == ("here", "here", {})
    assert about.index == f"bm25 {digest_of((run.index / MANIFEST).read_bytes())}"
    assert about.judged_by == "lexical"


@pytest.mark.parametrize("by", ["config", "variable"])
def test_a_retriever_service_must_serve_the_runs_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    for name, passages in (("same", PASSAGES), ("other", OTHERS)):
        folder = tmp_path / name
        with retriever_of(folder, passages) as url:
            if by == "variable":
                monkeypatch.setenv("ROLECAST_RETRIEVER_URL", url)
            run = run_with(folder, retriever={"url": url} if by == "config" else {})
            about = environment_of(run)
            assert about.retriever == url
            assert about.overrides == ({"ROLECAST_RETRIEVER_URL": url} if by == "variable" else {})
            if name == "same":
                assert isinstance(open_retriever(run), HttpRetriever)
            else:
                with pytest.raises(
                    InputError, match=rf"the retriever at {url} serves bm25 \w+, the run searches bm25 \w+; start it on the run's"
                ):
                    open_retriever(run)


def test_a_service_that_ranks_in_another_way_is_refused(tmp_path: Path) -> None:
    with retriever_of(tmp_path, PASSAGES) as url:
        run = run_with(tmp_path, retriever={"kind": "hybrid", "url": url})
        with pytest.raises(InputError, match=r"serves bm25 (\w+), the run searches hybrid \1;"):
            open_retriever(run)


def test_an_external_service_is_taken_as_it_is(tmp_path: Path) -> None:
    with retriever_of(tmp_path, OTHERS) as url:
        run = create(tmp_path / "run", make_config({"retriever": {"kind": "external", "url": url}}, "here"))
        index(run)
        assert not run.index.exists()
        assert isinstance(open_retriever(run), HttpRetriever)
        assert environment_of(run).index == "external"


def test_an_external_service_needs_an_address(tmp_path: Path) -> None:
    run = create(tmp_path / "run", make_config({"retriever": {"kind": "external"}}, "here"))
    with pytest.raises(InputError, match=r"name the service by retriever\.url or ROLECAST_RETRIEVER_URL"):
        open_retriever(run)


def test_the_judge_must_be_the_runs(tmp_path: Path) -> None:
    with judge_with("model-a") as url:
        same = run_with(tmp_path / "same", judge={"model": "model-a", "url": url})
        assert isinstance(open_judge(same), HttpJudge)
        assert environment_of(same).judged_by.split()[0] == "model-a"
        for name, wanted in (("b", "model-b"), ("lexical", "lexical")):
            run = run_with(tmp_path / name, judge={"model": wanted, "url": url})
            with pytest.raises(InputError, match=rf"the judge at {url} is model-a .*, the run's is {wanted}.*; set judge.model"):
                open_judge(run)


def test_a_judge_that_asks_in_other_words_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_with("model-a") as url:
        run = run_with(tmp_path, judge={"model": "model-a", "url": url})
        prompts = {"answer": "an older version"}
        monkeypatch.setattr("rolecast.stages.environment.judge_prompts", lambda: prompts)
        with pytest.raises(InputError, match="the run's is model-a answer:an older version"):
            open_judge(run)


def test_what_a_judge_must_be_names_the_prompts_of_the_methods_kinds_alone() -> None:
    kinds = {part.partition(":")[0] for part in judge_of(make_config({"judge": {"model": "m"}}, "here")).split()[1:]}
    assert kinds == {"answer", "decor.planner", "decor.filter", "decor.answerer"}
    monolithic = make_config({"judge": {"model": "m"}, "method": {"name": "search_r1"}}, "here")
    assert {part.partition(":")[0] for part in judge_of(monolithic).split()[1:]} == {"answer"}


def test_a_model_as_judge_needs_a_service(tmp_path: Path) -> None:
    run = run_with(tmp_path, judge={"model": "model-a"})
    with pytest.raises(
        InputError, match=r"judge\.model is model-a: name a judge service that asks it, by judge\.url or ROLECAST_JUDGE_URL"
    ):
        open_judge(run)


def test_addresses_are_recorded_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECAST_JUDGE_URL", "http://who:secret@judge:8080/x")
    about = environment_of(run_with(tmp_path))
    assert about.judge == about.overrides["ROLECAST_JUDGE_URL"] == "http://judge:8080/x"


def test_a_shared_index_is_searched_and_none_is_built(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "built", "bm25")
    run = create(tmp_path / "run", make_config({"retriever": {"index": str(tmp_path / "built")}, **SMALL_WORLD}, "here"))
    index(run)
    assert not run.index.exists()
    retriever = open_retriever(run)
    assert isinstance(retriever, LocalRetriever)
    assert retriever.passages == PASSAGES
    assert index_of(run).digest == run.shared["retriever.index"] == digest_of((tmp_path / "built" / MANIFEST).read_bytes())
    assert run.fingerprint != run.config.fingerprint


def test_a_shared_index_that_became_another_one_is_refused(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "built", "bm25")
    run = create(tmp_path / "run", make_config({"retriever": {"index": str(tmp_path / "built")}}, "here"))
    build_index(OTHERS, tmp_path / "built", "bm25")
    with pytest.raises(InputError, match=r"serves bm25 \w+, the run searches bm25 \w+"):
        open_retriever(run)


SMALL_WORLD: dict[str, Any] = {
    "data": {"world": {"entities": {"train": 60, "dev": 60, "test": 60}, "questions": {"train": 6, "dev": 4, "test": 4}}}
}


@pytest.mark.parametrize(
    ("retriever", "own", "words"),
    [({}, False, None), ({}, True, "unicode"), ({"analysis": {"words": "plain"}}, True, None), ({"analysis": {}}, False, "unicode")],
)
def test_a_drawn_world_is_searched_by_plain_words_and_a_corpus_of_files_by_unicode(
    tmp_path: Path, retriever: dict[str, Any], own: bool, words: str | None
) -> None:
    """None: an index that says nothing, as those of before."""
    here = Path(__file__).parents[3] / "configs" / "example"
    files = {"world": None, **{name: str(here / f"{name}.jsonl") for name in ("corpus", "train", "dev", "test")}}
    run = create(tmp_path / "run", make_config({"retriever": retriever, **({"data": files} if own else SMALL_WORLD)}, "here"))
    index(run)
    assert json.loads((run.index / "index.json").read_text()).get("analysis", {}).get("words") == words


@pytest.mark.parametrize(
    ("retriever", "k", "said"),
    [
        ({"kind": "dense"}, 3, r"is a bm25 index and cannot serve dense; set retriever\.kind"),
        ({}, 9, r"method\.k = 9 is larger than the corpus \(8 passages\)"),
    ],
)
def test_a_shared_index_must_fit_the_config(tmp_path: Path, retriever: dict[str, Any], k: int, said: str) -> None:
    build_index(PASSAGES, tmp_path / "built", "bm25")
    sections = {"retriever": {"index": str(tmp_path / "built"), **retriever}, "method": {"name": "decor", "k": k}, **SMALL_WORLD}
    with pytest.raises(InputError, match=said):
        index(create(tmp_path / "run", make_config(sections, "here")))


def test_what_is_no_index_is_no_shared_index(tmp_path: Path) -> None:
    run = run_with(tmp_path / "a")
    (run.index / MANIFEST).write_text(json.dumps({**json.loads((run.index / MANIFEST).read_text()), "kind": "model"}))
    with pytest.raises(InputError, match="is a model, not an index"):
        index(create(tmp_path / "b", make_config({"retriever": {"index": str(run.index)}, **SMALL_WORLD}, "here")))
    with pytest.raises(InputError, match=r"is no committed artifact: it has no manifest\.json"):
        create(tmp_path / "c", make_config({"retriever": {"index": str(tmp_path)}}, "here"))
    assert not (tmp_path / "c").exists()


def test_the_defaults_are_this_packages_own() -> None:
    assert judge_of(RunConfig()) == "lexical"
