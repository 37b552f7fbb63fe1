"""Text to tokens and back, once each: a thread's tokens are appended to, never rendered again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from rolecast.errors import InputError
from rolecast.types import Message


class Renderer:
    """The one owner of a tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise InputError(
                "the tokenizer has no chat template; use an instruction-tuned model or add chat_template.jinja to its directory"
            )
        self.tokenizer = tokenizer

    def prompt(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], str]:
        """The messages and the opening of the assistant's turn: (ids, their text)."""
        text = self.tokenizer.apply_chat_template([dict(m) for m in messages], add_generation_prompt=True, tokenize=False)
        assert isinstance(text, str)
        return self.encode(text), text

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def fingerprint(self) -> str:
        """Hash of vocabulary and template: two sides with one fingerprint render alike."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        return hashlib.sha256(repr((vocabulary, self.tokenizer.chat_template)).encode()).hexdigest()[:16]
