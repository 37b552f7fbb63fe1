"""Models that read what was found again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
import torch

from rolecast.errors import InputError
from rolecast.retriever.app import make_retriever
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.retriever.reranking import BATCH, Reranker, _plain, _YesNo, open_reranker
from rolecast.retriever.settings import RetrieverSettings
from rolecast.types import Passage
from tests.live import serving
from tests.tiny import TOKENIZER, tiny_model

PASSAGES = [Passage(str(n), f"t{n}" if n % 2 else "", f"dog {'word ' * n}") for n in range(8)]


def longest(query: str, texts: Sequence[str]) -> list[float]:
    return [float(len(text)) for text in texts]


def test_the_best_of_the_depth_come_first_with_their_scores() -> None:
    read = Reranker(longest, 3)("dog", PASSAGES[:5], 4)
    assert [passage.id for passage in read] == ["2", "1", "0", "3"]  # what lies beyond follows as it was
    assert [passage.score for passage in read] == [14.0, 12.0, 4.0, 4.0]
    assert [p.id for p in Reranker(lambda query, texts: [1.0] * len(texts), 9)("dog", PASSAGES, 8)] == [p.id for p in PASSAGES]
    assert Reranker(longest, 3)("dog", [], 3) == []


def test_a_search_looks_as_deep_as_its_reranker_reads(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "index", "bm25")
    retriever = LocalRetriever.open(tmp_path / "index")
    assert asyncio.run(retriever.search(["dog"], 1))[0][0].id == "0"
    retriever.reranker = Reranker(longest, 50)
    assert [p.id for p in asyncio.run(retriever.search(["dog", "nothing"], 2))[0]] == ["7", "6"]
    assert asyncio.run(retriever.search(["nothing"], 2)) == [[]]


@pytest.fixture(scope="module")
def yes_no(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranker")
    tiny_model(scale=5.0).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def test_a_language_model_scores_by_its_yes(yes_no: Path) -> None:
    """Alone and in a padded batch; against the model's own log-probs."""
    scores = open_reranker(str(yes_no), "yes_no", 5).scores
    assert isinstance(scores, _YesNo)
    texts = [p.text for p in PASSAGES] * 5
    assert len(texts) > BATCH
    found = scores("dog", texts)
    model = tiny_model(scale=5.0)
    for text, score in list(zip(texts, found, strict=True))[:3]:
        with torch.inference_mode():
            logits = model(torch.tensor([scores._ids("dog", text)])).logits[0, -1]
        yes, no = (float(logits[TOKENIZER.convert_tokens_to_ids(word)]) for word in ("yes", "no"))
        assert score == pytest.approx(1 / (1 + math.exp(no - yes)), abs=1e-4)
    assert len(set(found)) > 1


def test_a_long_document_loses_its_own_end(yes_no: Path) -> None:
    scores = _YesNo(str(yes_no), "task")
    short, long = scores._ids("dog", "dog"), scores._ids("dog", "dog " * 5000)
    assert len(long) == 512
    assert long[-5:] == short[-5:]
    assert _plain("a<|im_end|>b") == "a< im_end >b"


def cross_encoder(folder: Path, labels: int) -> Path:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "word"]
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=labels,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for weights in (model.bert.embeddings.word_embeddings.weight, model.bert.pooler.dense.weight, model.classifier.weight):
            weights.mul_(30)  # a random model is close to telling nothing apart
    model.save_pretrained(folder)
    BertTokenizerFast(vocab={word: number for number, word in enumerate(vocabulary)}).save_pretrained(folder)
    return folder


def test_a_cross_encoder_is_served(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "index", "bm25")
    folder = cross_encoder(tmp_path / "model", 1)
    scores = open_reranker(str(folder), "cross_encoder", 5).scores
    texts = [f"{p.title}\n{p.text}" if p.title else p.text for p in PASSAGES]
    wanted = dict(zip((p.id for p in PASSAGES), scores("dog", texts), strict=True))
    assert max(wanted.values()) > min(wanted.values()) + 1e-4
    settings = RetrieverSettings(index=str(tmp_path / "index"), reranker=str(folder))
    with serving(*make_retriever(settings)) as url:
        body = {"queries": ["dog"], "topk": 3, "return_scores": True}
        [hits] = httpx.post(f"{url}/retrieve", json=body).json()["result"]
    assert [hit["score"] for hit in hits] == pytest.approx(sorted(wanted.values(), reverse=True)[:3], abs=1e-5)
    assert [wanted[hit["document"]["id"]] for hit in hits] == pytest.approx([hit["score"] for hit in hits], abs=1e-5)


def test_what_is_no_reranker_is_refused(tmp_path: Path, yes_no: Path) -> None:
    with pytest.raises(InputError, match="is no model's directory; name one by --reranker"):
        open_reranker(str(tmp_path), "cross_encoder", 5)
    with pytest.raises(InputError, match="has 2 labels, not one score"):
        open_reranker(str(cross_encoder(tmp_path / "two", 2)), "cross_encoder", 5)
    with pytest.raises(InputError, match="has no token 'yes'"):
        _Wordless(str(yes_no), "task")


class _Wordless(_YesNo):
    def _word(self, folder: str, word: str) -> int:
        self._tokenizer = type("Unknowing", (), {"encode": lambda self, word, add_special_tokens: [0, 1], "unk_token_id": 0})()
        return super()._word(folder, word)
