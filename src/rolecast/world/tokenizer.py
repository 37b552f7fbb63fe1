"""The demo model's tokenizer: one token per word, syllable and protocol tag, bytes for everything else.

Unigram over a fixed vocabulary, so that any text can be asked: characters that are no piece fall back to bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rolecast.world.grammar import lexicon
from rolecast.world.names import SYLLABLES

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
CHAT = ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = tuple(
    f"<{slash}{tag}>"
    for tag in ("think", "search", "filter", "answer", "information")
    for slash in ("", "/")
)  # fmt: skip
ROLE_WORDS = [
    "planner",
    "filter",
    "answerer",
    "searcher",
    "question",
    "memory",
    "documents",
    "query",
    "next",
    "fact",
    "nothing",
    "missing",
    "done",
    "one",
    "two",
    "no",
    "none",
    "None",
    "find",
    "keep",
    "only",
    "Doc",
]
_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def demo_tokenizer(extra_words: Iterable[str] = (), tags: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """Words are pieces with and without a leading space; decoding gives the encoded text back exactly. `tags`: a method's, beside TAGS."""
    words = sorted({*lexicon(), *ROLE_WORDS, *extra_words})
    pieces = [(p, 0.0) for p in (PAD, EOS, UNK)]
    pieces += [(f"<0x{byte:02X}>", -30.0) for byte in range(256)]
    pieces += [(chr(code), -10.0) for code in (10, *range(32, 127))]
    known = {piece for piece, _ in pieces}
    for word in words:
        pieces += [(form, -1.0) for form in (f" {word}", word) if form not in known]
    pieces += [(f" {syllable}", -1.0) for syllable in SYLLABLES]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\w+| ?[^\w\s]|\s"), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in (PAD, EOS, UNK, *CHAT)])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in (*TAGS, *sorted({*tags} - {*TAGS}))])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNK)
    fast.clean_up_tokenization_spaces = False
    fast.chat_template = _TEMPLATE
    return fast
