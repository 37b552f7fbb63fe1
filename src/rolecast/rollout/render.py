"""Text to tokens and back, once each: a thread's tokens are appended to, never rendered again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rolecast.errors import InputError
from rolecast.types import Message

if TYPE_CHECKING:  # methods are read where transformers is not installed
    from transformers import PreTrainedTokenizerBase


class Renderer:
    """The one owner of a tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise InputError(
                "the tokenizer has no chat template; use an instruction-tuned model or add chat_template.jinja to its directory"
            )
        self.tokenizer = tokenizer
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special} | set(tokenizer.all_special_tokens)
        control = sorted(token for token in special if len(token) > 1)
        self._control = re.compile(rf"(?=(?:{'|'.join(map(re.escape, control))}))(.)", re.DOTALL) if control else None

    def prompt(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], str]:
        """The messages and the opening of the assistant's turn: (ids, their text). Only the template writes control tokens."""
        plain = [{**message, "content": self.plain(message["content"])} for message in messages]
        text = self.tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
        assert isinstance(text, str)
        return self.encode(text), text

    def plain(self, text: str) -> str:
        """`text` with a space inside whatever would be a control token: "<eos>" becomes "< eos>".

        A question, a passage or a memory may quote one; it must not open a turn or end one. Protocol tags are ordinary text.
        """
        return self._control.sub(r"\1 ", text) if self._control else text

    def encode(self, text: str) -> tuple[int, ...]:
        """Control tokens in `text` are taken for what they are: texts from outside go through `plain` first."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def fingerprint(self) -> str:
        """Hash of vocabulary and template: two sides with one fingerprint render alike."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        return hashlib.sha256(repr((vocabulary, self.tokenizer.chat_template)).encode()).hexdigest()[:16]
