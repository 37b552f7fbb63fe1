"""Reading of YAML and JSON: a key that is given twice is an error, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import make_config
from rolecast.errors import ArtifactError, InputError
from rolecast.methods.decor.method import DecorConfig
from rolecast.reading import read_json, read_mapping, read_own, read_own_lines

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
        ("{}", (), {}),
        ("a: {b: 1}", ("a.b=2", "a.c=[x, 1]"), {"a": {"b": 2, "c": ["x", 1]}}),
        ("a:", ("a.b.c=null",), {"a": {"b": {"c": None}}}),
    ],
)
def test_overrides_change_what_the_file_says(write: Write, content: str, overrides: Sequence[str], read: dict[str, Any]) -> None:
    assert read_mapping(write(content), overrides, "spec") == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "spec: write a mapping"),
        ("[]", "spec: write a mapping"),
        ("0", "spec: write a mapping"),
        ("false", "spec: write a mapping"),
        *((empty, "holds nothing; write the keys of the spec") for empty in ("", "\n", "# seed: 3\n", "null", "---\n")),
        ("a: [", "not YAML"),
        ("a: " + 2000 * "[", "nested too deeply"),
    ],
)
def test_a_file_that_holds_no_mapping_is_named(write: Write, text: str, said: str) -> None:
    file = write(text)
    assert fault(lambda: read_mapping(file, (), "spec")).startswith(f"{file}: {said}")


@pytest.mark.parametrize(("text", "said"), [("{", "not JSON"), (100_000 * "[", "nested too deeply")])
def test_a_text_that_is_no_json_is_named(text: str, said: str) -> None:
    assert fault(lambda: read_json(text, "job")).startswith(f"job: {said}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": ', "not JSON: Expecting value: line 1 column 7"),
        (b"", "not JSON: Expecting value: line 1 column 1"),
        (100_000 * b"[", "nested too deeply"),
        (b"[1]", "it: Input should be a valid dictionary"),
        (b'{"a": [1]}', "a: Input should be a valid number"),
    ],
)
def test_a_file_of_a_runs_own_that_is_damaged_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "own.json").write_bytes(content)
    (tmp_path / "own.jsonl").write_bytes(b'{"a": 1}\n' + content + b"\n")
    for where, read in ((f"{tmp_path}/own.json is", read_own), (f"{tmp_path}/own.jsonl, line 2, is", read_own_lines)):
        with pytest.raises(ArtifactError) as caught:
            read(tmp_path / where.removeprefix(f"{tmp_path}/").partition(" ")[0].strip(","), dict[str, float], "delete it")
        assert str(caught.value).startswith(f"{where} damaged ({said}")
        assert str(caught.value).endswith("; delete it")
        assert "\n" not in str(caught.value)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    assert read_own_lines(tmp_path / "own.jsonl", dict[str, int], "") == [{"a": 1}, {"a": 2}]


def test_a_file_without_an_end_is_refused() -> None:
    assert (
        fault(lambda: read_mapping(Path("/dev/zero"), (), "config"))
        == "/dev/zero: has more than 4 MiB, which nobody wrote; name another file"
    )


def test_only_true_and_false_are_booleans(write: Write) -> None:
    """YAML 1.1 reads `off` as false, and a setting whose values are words would refuse it."""
    read = read_mapping(write("a: off\nb: yes\nc: true\nd: [FALSE, No]\ntrueish: trues"), ["e=off", "f=false"], "spec")
    assert read == {"a": "off", "b": "yes", "c": True, "d": [False, "No"], "trueish": "trues", "e": "off", "f": False}


def test_words_and_switches_are_both_read_from_on_and_off() -> None:
    config = make_config(read_mapping(None, ["method.name=decor", "method.dynamic_sampling=off", "lockstep=on"], "config"), "config")
    assert isinstance(config.method, DecorConfig)
    assert (config.method.dynamic_sampling, config.lockstep) == ("off", True)
