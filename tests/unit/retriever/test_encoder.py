"""Encoders: what they are known by, what stands before texts, what fits; and indexes that know theirs. The model is a tiny real one."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rolecast.errors import ArtifactError, InputError
from rolecast.retriever import vectors
from rolecast.retriever.app import make_retriever
from rolecast.retriever.dense import Dense
from rolecast.retriever.encoder import Encoder, Prefixes
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.store.artifact import writing
from rolecast.types import Passage
from tests.live import serving

WORDS = "red blue green dog cat owl fish bird says the a is of . , : query passage title long".split()  # noqa: SIM905
WINDOW = 16
PASSAGES = [
    Passage("a", "Red", "the red dog says"),
    Passage("b", "Blue", "the blue cat"),
    Passage("c", "Long", " ".join(["green owl"] * 12 + ["fish bird"] * 3)),
]


def make_encoder(folder: Path, seed: int = 0, hidden: int = 16) -> Path:
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(seed)
    inner = folder.with_name(f"{folder.name}-inner")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    inner.mkdir(parents=True)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=hidden, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(inner)
    BertTokenizerFast(vocab={word: number for number, word in enumerate(vocabulary)}).save_pretrained(inner)
    words = models.Transformer(str(inner), max_seq_length=WINDOW)
    SentenceTransformer(modules=[words, models.Pooling(hidden, "mean")]).save(str(folder))
    shutil.rmtree(inner)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoders") / "e5-tiny")


@pytest.fixture
def encoder(tiny: Path, tmp_path: Path) -> Path:
    """A copy that a test may harm."""
    return Path(shutil.copytree(tiny, tmp_path / "encoder"))


@pytest.fixture
def index(encoder: Path, tmp_path: Path) -> Path:
    build_index(PASSAGES, tmp_path / "index", "dense", str(encoder))
    return tmp_path / "index"


def search(retriever: LocalRetriever, query: str, k: int = 3) -> list[tuple[str, float]]:
    return [(p.id, p.score) for p in asyncio.run(retriever.search([query], k))[0]]


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    read = json.loads(file.read_text())
    change(read)
    file.write_text(json.dumps(read))


def other_weights(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({name: (value + 1).astype(value.dtype) for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def other_tokenizer(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda read: read["model"]["vocab"].update(red=read["model"]["vocab"]["blue"]))


def other_pooling(folder: Path) -> None:
    file = folder / "1_Pooling" / "config.json"
    file.write_text(file.read_text().replace("mean", "max"))


def other_window(folder: Path) -> None:
    edit(folder / "sentence_bert_config.json", lambda read: read.update(max_seq_length=8))
    edit(folder / "tokenizer_config.json", lambda read: read.update(model_max_length=8))


@pytest.mark.parametrize(
    ("change", "said"), [(other_weights, "weights"), (other_tokenizer, "tokenizer"), (other_pooling, "pooling"), (other_window, "window")]
)
def test_another_encoder_under_the_same_path_is_refused(index: Path, encoder: Path, change: Callable[[Path], None], said: str) -> None:
    change(encoder)
    with pytest.raises(InputError, match=rf"encoder {encoder} is not the one that {index} was built with \(other .*{said}"):
        LocalRetriever.open(index)


def test_the_same_encoder_is_itself_wherever_it_lies(index: Path, encoder: Path, tmp_path: Path) -> None:
    before = search(LocalRetriever.open(index), "red dog")
    (encoder / "README.md").write_text("another text")
    moved = encoder.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"is no directory; name a sentence-transformers directory, or minilm, by --encoder"):
        LocalRetriever.open(index)
    assert search(LocalRetriever.open(index, encoder=str(moved)), "red dog") == before


def test_a_relative_path_is_found_from_anywhere(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build_index(PASSAGES, tmp_path / "index", "dense", "encoder")
    monkeypatch.chdir("/")
    assert LocalRetriever.open(tmp_path / "index").kind == "dense"
    assert json.loads((tmp_path / "index" / "index.json").read_text())["encoder"] == "encoder"


def test_prefixes_are_the_encoders_own_or_the_configs_and_not_its_folders(encoder: Path, tmp_path: Path) -> None:
    assert Encoder(str(encoder)).prefixes == Prefixes()
    edit(encoder / "config_sentence_transformers.json", lambda read: read.update(prompts={"query": "query: ", "document": "passage: "}))
    own = Encoder(str(encoder))
    assert own.prefixes == Prefixes(query="query: ", passage="passage: ")
    plain = Encoder(str(encoder), Prefixes())
    for side in ("query", "passage"):
        assert own.encode(["red dog"], side) == pytest.approx(plain.encode([f"{side}: red dog"], side), abs=1e-6)
        assert own.encode(["red dog"], side) != pytest.approx(plain.encode(["red dog"], side), abs=1e-3)
    build_index(PASSAGES, tmp_path / "own", "dense", str(encoder))
    build_index(PASSAGES, tmp_path / "given", "dense", str(encoder), prefixes=Prefixes(query="title : "))
    edit(encoder / "config_sentence_transformers.json", lambda read: read.update(prompts={}))  # the index keeps what it was built with
    built = [LocalRetriever.open(tmp_path / name)._dense for name in ("own", "given")]
    assert [dense.encoder.prefixes for dense in built if dense] == [own.prefixes, Prefixes(query="title : ")]


def test_an_index_of_before_has_the_prefixes_that_its_encoders_folder_told(tiny: Path, encoder: Path, tmp_path: Path) -> None:
    for name, folder, expected in (("e5", tiny, Prefixes(query="query: ", passage="passage: ")), ("other", encoder, Prefixes())):
        build_index(PASSAGES, tmp_path / "new", "dense", str(folder))
        with writing(tmp_path / name, "index", {"kind": "dense", "encoder": str(folder), "passages": 3}) as partial:
            for file in ("corpus.jsonl", "dense.faiss"):
                shutil.copy(tmp_path / "new" / file, partial / file)
            (partial / "index.json").write_text(json.dumps({"kind": "dense", "encoder": str(folder)}))
        dense = LocalRetriever.open(tmp_path / name)._dense
        assert dense is not None
        assert dense.encoder.prefixes == expected


# What outgrows the window


def test_texts_that_outgrow_the_window_are_counted_and_told(encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        built = build_index(PASSAGES, tmp_path / "index", "dense", str(encoder))
    assert (built.window, built.longer, built.vectors, built.longest) == (WINDOW, 1, 3, 34)
    assert f"1 of 3 passages are longer than the encoder's {WINDOW} tokens: what lies beyond is not searched by meaning" in caplog.text
    made = json.loads((tmp_path / "index" / "manifest.json").read_text())["provenance"]
    assert (made["longer"], made["longest"], made["window"]) == (1, 34, WINDOW)


def test_pieces_fit_and_are_the_whole_text(encoder: Path) -> None:
    model = Encoder(str(encoder))
    text = f"Long. {PASSAGES[2].text}"
    pieces = model.pieces(text, "Long. ")
    assert len(pieces) > 2
    assert max(model.lengths(pieces)) <= WINDOW
    assert "Long. " + " ".join(piece.removeprefix("Long. ") for piece in pieces) == text
    wide = "red " * 10 + ". "  # would leave no room
    assert " ".join(model.pieces(wide + text, wide)).split() == (wide + text).split()


def test_a_passage_in_pieces_is_one_hit_that_counts_by_its_best(encoder: Path, tmp_path: Path) -> None:
    cut, split = tmp_path / "cut", tmp_path / "split"
    build_index(PASSAGES, cut, "dense", str(encoder))
    built = build_index(PASSAGES, split, "dense", str(encoder), long="split")
    assert built.vectors > 3
    for k in (1, 2, 3, 9):
        assert len(search(LocalRetriever.open(split), "fish bird", k)) == min(k, 3)
    model = Encoder(str(encoder))
    [asked] = model.encode(["fish bird"], "query")
    best = max(float(np.dot(asked, vector)) for vector in model.encode(model.pieces(f"Long. {PASSAGES[2].text}", "Long. "), "passage"))
    [score] = [score for id, score in search(LocalRetriever.open(split), "fish bird") if id == "c"]
    assert score == pytest.approx(best, abs=1e-5)
    assert score > dict(search(LocalRetriever.open(cut), "fish bird"))["c"]


# Builds that end early


class Killed(Exception):
    pass


def test_a_build_that_was_killed_goes_on_after_what_it_had_encoded(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "PART", 2)
    passages = [*PASSAGES, Passage("d", "Owls", "the owl"), Passage("e", "Fish", "a fish")]
    build_index(passages, tmp_path / "whole", "dense", str(encoder))
    made: list[int] = []
    encode = Encoder.encode

    def counted(self: Encoder, texts: Any, side: Any) -> Any:
        made.append(len(texts))
        return encode(self, texts, side)

    def killing(done: int, total: int) -> None:
        if done > 2:
            raise Killed

    monkeypatch.setattr(Encoder, "encode", counted)
    with pytest.raises(Killed):
        build_index(passages, tmp_path / "index", "dense", str(encoder), shown=killing)
    assert (made, (tmp_path / "index").exists()) == ([2, 2], False)
    [half, *_] = sorted((tmp_path / ".index.vectors").iterdir())
    half.write_bytes(half.read_bytes()[:100])  # the disk was full
    seen: list[tuple[int, int]] = []
    build_index(passages, tmp_path / "index", "dense", str(encoder), shown=lambda *given: seen.append(given))
    assert made == [2, 2, 2, 1]
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert (tmp_path / "index" / "dense.faiss").read_bytes() == (tmp_path / "whole" / "dense.faiss").read_bytes()
    assert not (tmp_path / ".index.vectors").exists()


def test_parts_of_another_encoder_or_of_other_texts_are_not_taken(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(prefixes: Prefixes, *texts: str) -> set[str]:
        list(vectors.encoded(texts, Encoder(str(encoder), prefixes), tmp_path / "parts", lambda done, total: None))
        return {file.name for file in (tmp_path / "parts").iterdir()}

    counts = [len(parts(Prefixes(), "red"))]
    counts.append(len(parts(Prefixes(), "red")))
    counts.append(len(parts(Prefixes(), "blue")))
    counts.append(len(parts(Prefixes(passage="title"), "red")))
    other_weights(encoder)
    counts.append(len(parts(Prefixes(), "red")))
    assert counts == [1, 1, 2, 3, 4]


# What cannot be served is said before it is ready


def rewritten(index: Path, change: Callable[[Path], None]) -> Path:
    """An index whose manifest is right about files that are not: one that was imported, or made by another hand."""
    with writing(index, "index", json.loads((index / "manifest.json").read_text())["provenance"]) as partial:
        for file in index.iterdir():
            if file.name != "manifest.json":
                shutil.copy(file, partial / file.name)
        change(partial)
    return index


def start(index: Path, **settings: Any) -> None:
    with serving(*make_retriever(RetrieverSettings(index=str(index), **settings))):
        pass


def test_a_service_without_its_encoder_does_not_become_ready(index: Path, encoder: Path) -> None:
    shutil.rmtree(encoder)
    with pytest.raises(InputError, match=r"encoder .* is no directory"):
        start(index)


def test_a_service_with_another_encoder_does_not_become_ready(index: Path, tmp_path: Path) -> None:
    make_encoder(tmp_path / "other", seed=1)
    with pytest.raises(InputError, match=r"is not the one that .* was built with \(other weights\)"):
        start(index, encoder=str(tmp_path / "other"))


def test_vectors_of_another_width_are_refused(index: Path, tmp_path: Path) -> None:
    make_encoder(tmp_path / "wide", hidden=24)
    rewritten(index, lambda folder: edit(folder / "index.json", lambda read: read.pop("identity")))
    with pytest.raises(InputError, match="gives vectors of 24 numbers, the index holds 16; name the encoder that it was built with"):
        start(index, encoder=str(tmp_path / "wide"))


def test_a_shard_that_is_no_index_or_of_another_corpus_is_refused(index: Path) -> None:
    faiss = index / "dense.faiss"
    faiss.write_bytes(faiss.read_bytes()[:-8])
    with pytest.raises(ArtifactError, match="does not match the manifest"):
        start(index)
    rewritten(index, lambda folder: None)
    with pytest.raises(ArtifactError, match=r"dense\.faiss is no FAISS index, or not all of one; build or fetch it again"):
        start(index)


def test_vectors_of_another_corpus_are_refused(index: Path) -> None:
    def shorter(folder: Path) -> None:
        lines = (folder / "corpus.jsonl").read_text().splitlines(keepends=True)
        (folder / "corpus.jsonl").write_text("".join(lines[:-1]))

    with pytest.raises(ArtifactError, match=r"dense\.faiss has vectors of 3 passages and its corpus has 2; build the index again"):
        start(rewritten(index, shorter))


def test_a_service_is_warm_when_it_is_ready(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is loaded and has searched: nothing is left for the first query to make."""
    ranked: list[list[str]] = []
    rank = Dense.rank
    monkeypatch.setattr(Dense, "rank", lambda self, queries, k: (ranked.append(list(queries)), rank(self, queries, k))[1])
    app, service = make_retriever(RetrieverSettings(index=str(index)))
    with serving(app, service):
        assert ranked == [["ready"]]


@pytest.mark.slow
def test_the_first_query_of_a_warm_service_costs_what_the_others_do(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "index", "hybrid")
    with serving(*make_retriever(RetrieverSettings(index=str(tmp_path / "index")))) as url, httpx.Client() as client:
        seconds = []
        for number in range(21):
            begun = time.perf_counter()
            assert client.post(f"{url}/retrieve", json={"queries": [f"dog {number}"]}).status_code == 200
            seconds.append(time.perf_counter() - begun)
    assert seconds[0] < 3 * statistics.median(seconds[1:]) + 0.05, seconds
