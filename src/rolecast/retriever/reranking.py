"""A second look at what was found: a model reads query and passage together and says how well they fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from rolecast.errors import InputError
from rolecast.installed import needing
from rolecast.types import Passage

Form = Literal["cross_encoder", "yes_no"]
BATCH = 32  # pairs at once
TASK = "Find passages that help to answer the question"
QUESTION = 'Does the document fit the query as the instruction asks? Reply with one word, "yes" or "no".'
SPECIAL = ("<|im_start|>", "<|im_end|>")


class Scores(Protocol):
    def __call__(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Of each text, the higher the better."""


@dataclass(frozen=True, slots=True)
class Reranker:
    """`depth`: how many passages of a ranking are read again."""

    scores: Scores
    depth: int

    def __call__(self, query: str, found: Sequence[Passage], k: int) -> list[Passage]:
        """The best k of `found` with their new scores; equal ones keep their order. What lies beyond `depth` follows as it was, with none."""
        read, left = found[: self.depth], found[self.depth :]
        if not read:
            return []
        scores = self.scores(query, [f"{passage.title}\n{passage.text}" if passage.title else passage.text for passage in read])
        scored = [replace(passage, score=float(score)) for passage, score in zip(read, scores, strict=True)]
        worst = min(passage.score for passage in scored)
        return [*sorted(scored, key=lambda passage: -passage.score), *(replace(passage, score=worst) for passage in left)][:k]


def open_reranker(folder: str, form: Form, depth: int, task: str = TASK) -> Reranker:
    """Loads the model at `folder`. `InputError` if there is none, or none of this form."""
    if not (Path(folder) / "config.json").is_file():
        raise InputError(f"reranker {folder!r} is no model's directory; name one by --reranker")
    make: Callable[[], Scores] = (lambda: _YesNo(folder, task)) if form == "yes_no" else (lambda: _cross_encoder(folder))
    with needing("retriever"):
        return Reranker(make(), depth)


def _cross_encoder(folder: str) -> Scores:
    """A model of sequence classification with one label, by sentence-transformers."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(folder)
    if model.num_labels != 1:
        raise InputError(f"reranker {folder} has {model.num_labels} labels, not one score; name a cross-encoder of one label")

    def scores(query: str, texts: Sequence[str]) -> Sequence[float]:
        found: Sequence[float] = model.predict([(query, text) for text in texts], batch_size=BATCH, show_progress_bar=False).tolist()
        return found

    return scores


class _YesNo:
    """A language model that is asked whether a passage fits, as Qwen3-Reranker is (Zhang et al. 2025): the score is how likely "yes" is, of
    "yes" and "no", after instruction, query and document under the tags of that paper."""

    def __init__(self, folder: str, task: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch, self._task = torch, task
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(self._device).eval()
        self._words = [self._word(folder, word) for word in ("yes", "no")]
        self._longest = int(getattr(self._model.config, "max_position_embeddings", 0) or 2**15)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token

    def _word(self, folder: str, word: str) -> int:
        ids = self._tokenizer.encode(word, add_special_tokens=False)
        if len(ids) != 1 or ids[0] == self._tokenizer.unk_token_id:
            raise InputError(
                f"the tokenizer of reranker {folder} has no token {word!r}; take --reranker-form cross_encoder, or another model"
            )
        return int(ids[0])

    def __call__(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        found: list[float] = []
        for at in range(0, len(texts), BATCH):
            found += self._part([self._ids(query, text) for text in texts[at : at + BATCH]])
        return found

    def _ids(self, query: str, text: str) -> list[int]:
        """What is too long loses the end of its document, not the question after it."""
        head = (
            f"<|im_start|>system\n{QUESTION}<|im_end|>\n<|im_start|>user\n<Instruct>: {self._task}\n<Query>: {_plain(query)}\n<Document>: "
        )
        tail = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        before, within, after = (self._tokenizer.encode(part, add_special_tokens=False) for part in (head, _plain(text), tail))
        ids: list[int] = [*before, *within[: max(0, min(8192, self._longest) - len(before) - len(after))], *after]
        return ids

    def _part(self, rows: Sequence[list[int]]) -> list[float]:
        torch = self._torch
        padded = self._tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self._device)
        with torch.inference_mode():
            logits = self._model(input_ids=padded["input_ids"], attention_mask=padded["attention_mask"], logits_to_keep=1).logits[:, -1]
        likely: list[float] = logits[:, self._words].float().softmax(dim=1)[:, 0].tolist()
        return likely


def _plain(text: str) -> str:
    """A passage cannot end its turn."""
    for mark in SPECIAL:
        text = text.replace(mark, mark.replace("|", " "))
    return text
