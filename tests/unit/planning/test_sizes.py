"""The sizes that the page on installing quotes are those that a plan gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rolecast.config import load_config
from rolecast.planning.plan import as_json, make_plan

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "install.md").read_text()
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
    "num_key_value_heads": 2, "intermediate_size": 11008, "vocab_size": 151936, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip


def rows() -> list[tuple[int, list[float]]]:
    table = PAGE.split("## Sizes")[1].split("The learner, RL")[0]
    found = re.findall(r"^\| ([\d,]+)[^|]* \| ([\d.,]+) \| ([\d.,]+) \| ([\d.,]+) \|$", table, re.MULTILINE)
    return [(int(passages.replace(",", "")), [float(size.replace(",", "")) for size in sizes]) for passages, *sizes in found]


@pytest.mark.parametrize(("passages", "sizes"), rows())
def test_an_index_takes_what_the_page_says(passages: int, sizes: list[float], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    for kind, size in zip(("bm25", "dense", "hybrid"), sizes, strict=True):
        given = [f"model.path={tmp_path}", "rollouts=workers", f"retriever.kind={kind}"]
        plan = as_json(make_plan(load_config(ROOT / "configs" / "decor_paper.yaml", given), 8, 10_000.0, None, passages))
        assert plan["stages"]["rl"]["host_bytes"] / 2**30 == pytest.approx(size, abs=0.06 if size < 1000 else 0.6), kind


def test_there_are_rows() -> None:
    assert [passages for passages, _ in rows()] == [10**6, 21 * 10**6, 10**9]
