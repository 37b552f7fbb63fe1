"""Reading of YAML and JSON: a key that is given twice is an error, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolecast.errors import InputError
from rolecast.reading import read_json, read_mapping

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(content: str) -> Path:
        file = tmp_path / "spec.yaml"
        file.write_text(content)
        return file

    return written


def fault(read: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as caught:
        read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "key", "line"),
    [
        ("seed: 1\nname: a\nseed: 2", "seed", 3),
        ("stages:\n  rl:\n    steps: 1\n    group: 2\n    steps: 1\n", "steps", 5),
        ("data: {world: {questions: {dev: 1,\n dev: 1}}}", "dev", 2),
        ("'seed': 1\nseed: 2", "seed", 2),
    ],
)
def test_the_second_of_two_keys_is_named_with_its_line(write: Write, content: str, key: str, line: int) -> None:
    assert f"spec.yaml: key '{key}' is given twice, again in line {line};" in fault(lambda: read_mapping(write(content), (), "spec"))


def test_keys_of_two_sections_may_be_equal_and_a_merged_key_may_be_set(write: Write) -> None:
    read = read_mapping(write("sft: &a {steps: 3, keep: 4}\nrl: {<<: *a, steps: 5}"), (), "spec")
    assert read == {"sft": {"steps": 3, "keep": 4}, "rl": {"steps": 5, "keep": 4}}


def test_a_key_that_is_given_twice_is_refused_in_overrides_and_json() -> None:
    said = fault(lambda: read_mapping(None, ["rl={steps: 1, steps: 2}"], "spec"))
    assert said.startswith("override 'rl={steps: 1, steps: 2}': key 'steps' is given twice")
    assert fault(lambda: read_json('{"a": {"seed": 1, "seed": 2}}', "run.json")).startswith("run.json: key 'seed' is given twice")


@pytest.mark.parametrize(
    ("content", "overrides", "read"),
    [
        ("", (), {}),
        ("a: {b: 1}", ("a.b=2", "a.c=[x, 1]"), {"a": {"b": 2, "c": ["x", 1]}}),
        ("a:", ("a.b.c=null",), {"a": {"b": {"c": None}}}),
    ],
)
def test_overrides_change_what_the_file_says(write: Write, content: str, overrides: Sequence[str], read: dict[str, Any]) -> None:
    assert read_mapping(write(content), overrides, "spec") == read


@pytest.mark.parametrize(
    ("text", "said"), [("- a", "a spec is a mapping"), ("a: [", "not YAML"), ("a: " + 2000 * "[", "nested too deeply")]
)
def test_a_file_that_holds_no_mapping_is_named(write: Write, text: str, said: str) -> None:
    file = write(text)
    assert fault(lambda: read_mapping(file, (), "spec")).startswith(f"{file}: {said}")


@pytest.mark.parametrize(("text", "said"), [("{", "not JSON"), (100_000 * "[", "nested too deeply")])
def test_a_text_that_is_no_json_is_named(text: str, said: str) -> None:
    assert fault(lambda: read_json(text, "job")).startswith(f"job: {said}")
