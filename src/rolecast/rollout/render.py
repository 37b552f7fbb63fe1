"""Text to tokens and back, once each: a thread's tokens are appended to, never rendered again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from rolecast.errors import InputError
from rolecast.tags import left_open
from rolecast.types import Message

if TYPE_CHECKING:  # methods are read where transformers is not installed
    from transformers import PreTrainedTokenizerBase


# `_folded`, as a template does it, before a template that has no place for system messages. The last line keeps what follows whole: a
# block at the end would take its first line break.
_FOLDING = """\
{%- set folding = namespace(system=[], rest=[], done=false) -%}
{%- for m in messages if m['role'] == 'system' -%}{%- set folding.system = folding.system + [m['content']] -%}{%- endfor -%}
{%- if folding.system -%}
{%- for m in messages if m['role'] != 'system' -%}
{%- if m['role'] == 'user' and not folding.done -%}
{%- set folding.done = true -%}
{%- set folding.rest = folding.rest + [{'role': 'user', 'content': (folding.system + [m['content']]) | join('\\n\\n')}] -%}
{%- else -%}{%- set folding.rest = folding.rest + [m] -%}{%- endif -%}
{%- endfor -%}
{%- if not folding.done -%}
{%- set folding.rest = [{'role': 'user', 'content': folding.system | join('\\n\\n')}] + folding.rest -%}
{%- endif -%}
{%- set messages = folding.rest -%}
{%- endif -%}
{{- '' }}"""
PROMPTS = 2048  # that are kept: members of a group ask much the same
PROBE = ({"role": "system", "content": "to be kept"}, {"role": "user", "content": "hello"})


class Renderer:
    """The one owner of a tokenizer and its chat template. `tags`: what the method's roles write their replies in.

    `opening`: the tag that the template itself leaves open at the end of a prompt ("<think>" of reasoning models), with the white
    space after it. A reply to a prompt is read as if it began with that; its tokens are the sampled ones alone.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tags: Collection[str] = ()) -> None:
        if not tokenizer.chat_template:
            raise InputError(
                "the tokenizer has no chat template; use an instruction-tuned model or add chat_template.jinja to its directory"
            )
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        tokenizer.encode("", add_special_tokens=False)  # takes off the truncation that a tokenizer's file may set
        self._prompts = lru_cache(PROMPTS)(self._prompt)
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special} | set(tokenizer.all_special_tokens)
        self._special, self._control = _any_of(special), _any_of(special - set(tags))
        self._folds = not self._takes_system()
        try:
            self.opening = left_open(self._template(_folded(PROBE) if self._folds else PROBE))
        except Exception as error:
            raise InputError(
                f"the tokenizer's chat template cannot render a user's message: {' '.join(str(error).split())[:300]}"
            ) from error

    def _takes_system(self) -> bool:
        try:
            return PROBE[0]["content"] in self._template(PROBE)
        except Exception:  # whatever a template raises: there is no one way to say so
            return False

    def _template(self, messages: Sequence[Message]) -> str:
        text = self.tokenizer.apply_chat_template([dict(m) for m in messages], add_generation_prompt=True, tokenize=False)
        assert isinstance(text, str)
        return text

    def prompt(self, messages: Sequence[Message], opened: bool = True) -> tuple[tuple[int, ...], str]:
        """The messages and the opening of the assistant's turn: (ids, their text). Only the template writes control tokens.

        A system message goes before the first user message where the template has no place for it. `opened`: with the tag that the
        template leaves open.
        """
        return self._prompts(tuple((message["role"], message["content"]) for message in messages), opened)

    def forget(self) -> None:
        """The prompts that are kept; for measurements."""
        self._prompts.cache_clear()

    def _prompt(self, messages: Sequence[tuple[str, str]], opened: bool) -> tuple[tuple[int, ...], str]:
        plain: list[Message] = [{"role": role, "content": self.plain(content)} for role, content in messages]
        text = self._template(_folded(plain) if self._folds else plain)
        text = text if opened else text.removesuffix(self.opening)
        return self.encode(text), text

    @property
    def portable_template(self) -> str:
        """The chat template for others, by which `apply_chat_template` gives what `prompt` does, system messages included."""
        given = self.tokenizer.chat_template
        template = str(given["default"] if isinstance(given, dict) else given)  # of several, the one that is taken unless another is named
        return _FOLDING + template if self._folds else template

    def plain(self, text: str) -> str:
        """`text` with a space inside whatever would be a control token: "<eos>" becomes "< eos>".

        A question or a memory may quote one; it must not open a turn or end one. Protocol tags are ordinary text, also where the
        vocabulary calls them special: instructions name them.
        """
        return self._control.sub(r"\g<0> ", text) if self._control else text

    def quoted(self, text: str) -> str:
        """A passage's `text`, in which protocol tags are broken too if they are special tokens: it is no instruction."""
        return self._special.sub(r"\g<0> ", text) if self._special else text

    def encode(self, text: str) -> tuple[int, ...]:
        """Control tokens in `text` are taken for what they are: texts from outside go through `plain` first."""
        if self._backend is None:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))
        [found] = self._backend.encode_batch_fast([text], add_special_tokens=False)  # without each token's place, which takes as long again
        return tuple(found.ids)

    def decode(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def fingerprint(self) -> str:
        """Hash of vocabulary and template: two sides with one fingerprint render alike."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        return hashlib.sha256(repr((vocabulary, self.tokenizer.chat_template)).encode()).hexdigest()[:16]


def _any_of(tokens: Collection[str]) -> re.Pattern[str] | None:
    """Matches the first character of each token. It stands before what it must be followed by, so that a search skips to where it is."""
    longer = sorted(token for token in tokens if len(token) > 1)
    firsts = [(first, "|".join(re.escape(token[1:]) for token in of)) for first, of in groupby(longer, key=lambda token: token[0])]
    return re.compile("|".join(f"{re.escape(first)}(?={rest})" for first, rest in firsts)) if longer else None


def _folded(messages: Sequence[Message]) -> list[Message]:
    """Without system messages: what they say begins the first user message."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    first = next((number for number, message in enumerate(rest) if message["role"] == "user"), None)
    if not system:
        return rest
    if first is None:
        return [{"role": "user", "content": "\n\n".join(system)}, *rest]
    rest[first] = {**rest[first], "content": "\n\n".join([*system, rest[first]["content"]])}
    return rest
