"""What `rolecast data card` and `show` say of a place, and of one where nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecast.data.card import SHOWN, card, card_of, counted, lines_of, made_lines, shown
from rolecast.errors import InputError


def questions(file: Path, *names: str, **more: object) -> Path:
    rows = [{"id": name, "question": f"Who is {name}?", "answers": [name], **more} for name in names]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_place_that_is_not_there_or_holds_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such file or folder; check the path"):
        card_of(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds neither questions nor corpus\.jsonl; name a folder"):
        card(tmp_path)
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "p", "title": "T", "text": "It is me."}) + "\n")
    with pytest.raises(InputError, match="no questions; name a file of questions, or a folder with one"):
        shown(tmp_path, 2, 0)
    assert card(tmp_path) == {"questions": {}, "corpus": {"passages": 1, "words": 3.0}}


def test_a_file_has_a_card_and_can_be_shown(tmp_path: Path) -> None:
    file = questions(tmp_path / "dev.jsonl", "Kel", "Dax", "Vim", type="chain")
    found, said = card_of(file)
    assert (found["questions"]["dev.jsonl"]["n"], said) == (3, {})
    questions(tmp_path / "test.jsonl", "Stom")
    assert len(shown(file, 9, 0)) == 3, "no other file beside it"
    assert len(shown(tmp_path, 9, 0)) == 4
    assert len(shown(file, 2, 0)) == 2
    assert {text.split("?")[0] for seed in range(20) for text in shown(file, 1, seed)} == {"Who is Kel", "Who is Dax", "Who is Vim"}


def test_a_long_table_ends_with_the_sum_of_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    rows = [{"id": f"{n}", "question": "Who?", "answers": ["x"], "type": f"t{n}"} for n in range(SHOWN + 3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = lines_of(card_of(file)[0])
    assert "    3  3 others" in lines
    assert len([line for line in lines if line.strip().startswith("1  t")]) == SHOWN


def test_what_a_manifest_does_not_say_has_no_line() -> None:
    assert made_lines({}) == []
    assert made_lines({"made": "mix", "size": None, "against": [], "dataset": ""}) == ["made", "  made     mix"]
    assert counted({}) == []
