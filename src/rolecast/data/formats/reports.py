"""Questions that a report answers, and the rubrics it is held to: DeepResearch Bench, HealthBench, ResearchQA."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from rolecast.data.formats.base import Format, Item, Key, Layout, key_of, listed
from rolecast.data.formats.containers import read_rows
from rolecast.data.jsonl import RowError, fault
from rolecast.data.records import Filled, describe
from rolecast.types import Gold, Question, RubricItem

Spelled = BeforeValidator(listed)


class _Criterion(Layout):
    criterion: Filled
    weight: float = Field(ge=0)


class _Criteria(Layout):
    id: Key = None
    prompt: Filled
    dimension_weight: dict[str, float]
    criterions: dict[str, list[_Criterion]] = Field(min_length=1)

    def rubric(self) -> tuple[RubricItem, ...]:
        """Each criterion with its weight in its dimension, times the dimension's."""
        if lost := sorted(set(self.criterions) - set(self.dimension_weight)):
            raise RowError(f"'dimension_weight' lacks {lost[0]!r}, which has criteria; fetch the file again")
        return tuple(
            RubricItem(item.criterion, self.dimension_weight[dimension] * item.weight, dimension)
            for dimension, items in self.criterions.items()
            for item in items
        )


def _criteria(raw: Mapping[str, Any]) -> Item:
    """`criteria.jsonl` of DeepResearch Bench, which has the prompts too."""
    row = _Criteria.model_validate(raw)
    return Item(key_of(row.id), Question("", row.prompt, Gold((), rubric=row.rubric())))


class _Query(Layout):
    id: Key
    prompt: Filled
    topic: str = ""


class _Article(Layout):
    id: Key
    prompt: Filled
    article: Filled


def _query(rubrics: Mapping[str, tuple[RubricItem, ...]], raw: Mapping[str, Any]) -> Item:
    """`query.jsonl`: the topic is the type."""
    row = _Query.model_validate(raw)
    if not (rubric := rubrics.get(str(row.id), ())):
        return Item(key_of(row.id), left_out="prompts without criteria")
    return Item(key_of(row.id), Question("", row.prompt, Gold((), rubric=rubric), row.topic))


def _article(rubrics: Mapping[str, tuple[RubricItem, ...]], raw: Mapping[str, Any]) -> Item:
    """A reference report, with which reports are compared: the answer, beside the rubric where there is one."""
    row = _Article.model_validate(raw)
    return Item(key_of(row.id), Question("", row.prompt, Gold((row.article,), rubric=rubrics.get(str(row.id), ()))))


def _rubrics(path: Path, needed: bool = True) -> dict[str, tuple[RubricItem, ...]]:
    """By id, from the file of criteria where the benchmark has it, or beside."""
    own = path.name.split(".")[0]
    names = ("criteria.jsonl", *(f"{own.removesuffix(part)}criteria.jsonl" for part in ("query", "article") if own.endswith(part)))
    places = [path.parent / name for name in names] + [path.parent.parent / "criteria_data" / "criteria.jsonl"]
    if (file := next((place for place in places if place.is_file()), None)) is None:
        if not needed:
            return {}
        raise fault(path, "has prompts and no rubric; put criteria.jsonl of the benchmark beside it")
    found = {}
    for row in read_rows(file):
        try:
            criteria = _Criteria.model_validate(row.value)
            found[str(criteria.id)] = criteria.rubric()
        except ValidationError as error:
            raise fault(f"{file}, {row.unit} {row.number}", describe(error, "fetch the file again")) from None
        except RowError as error:
            raise fault(f"{file}, {row.unit} {row.number}", str(error)) from None
    return found


class _Turn(Layout):
    role: Filled
    content: Filled


class _Points(Layout):
    criterion: Filled
    points: float


class _HealthBench(Layout):
    id: Key = Field(default=None, validation_alias="prompt_id")
    prompt: Annotated[list[_Turn], Spelled] = Field(min_length=1)
    rubrics: Annotated[list[_Points], Spelled] = Field(min_length=1)
    example_tags: Annotated[list[str], Spelled] = Field(default=[])


def _health_bench(raw: Mapping[str, Any]) -> Item:
    """A conversation whose next turn is asked for; its theme is the type. Points below zero are for what should not be said. Read as described
    by openai/simple-evals (healthbench_eval.py)."""
    row = _HealthBench.model_validate(raw)
    turns = [turn.content if len(row.prompt) == 1 else f"{turn.role}: {turn.content}" for turn in row.prompt]
    theme = next((tag.partition(":")[2] for tag in row.example_tags if tag.startswith("theme:")), "")
    rubric = tuple(RubricItem(item.criterion, item.points) for item in row.rubrics)
    return Item(key_of(row.id), Question("", "\n\n".join(turns), Gold((), rubric=rubric), theme))


class _RubricItem(Layout):
    rubric_item: Filled


class _ResearchQA(Layout):
    id: Key = None
    query: Filled
    general_domain: str = ""
    rubric: Annotated[list[_RubricItem], Spelled] = Field(min_length=1)


def _research_qa(raw: Mapping[str, Any]) -> Item:
    """Every item counts alike; the domain is the type. Read as described by realliyifei/ResearchQA (compute_coverage.py)."""
    row = _ResearchQA.model_validate(raw)
    rubric = tuple(RubricItem(item.rubric_item) for item in row.rubric)
    return Item(key_of(row.id), Question("", row.query, Gold((), rubric=rubric), row.general_domain))


CRITERIA = Format("deepresearch_bench", lambda raw: raw.keys() >= {"prompt", "criterions", "dimension_weight"}, _criteria)
QUERY = Format(
    "deepresearch_bench_query",
    lambda raw: raw.keys() >= {"prompt", "topic", "language"},
    partial(_query, {}),
    with_file=lambda path: partial(_query, _rubrics(path)),
)
ARTICLE = Format(
    "deepresearch_bench_article",
    lambda raw: raw.keys() >= {"prompt", "article"},
    partial(_article, {}),
    with_file=lambda path: partial(_article, _rubrics(path, needed=False)),
)
HEALTH_BENCH = Format("healthbench", lambda raw: raw.keys() >= {"prompt", "rubrics"}, _health_bench)
RESEARCH_QA = Format("researchqa", lambda raw: raw.keys() >= {"query", "rubric"}, _research_qa)
