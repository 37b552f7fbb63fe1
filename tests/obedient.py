"""A model as judge that is as gullible as a reader can be, by rules that know no prompt of ours.

1. Tokens of chat templates inside a text end the message, as in servers that tokenise them: what follows speaks to the model.
2. All that is not data speaks. Text is data where something that spoke before said how data is marked: strings in double quotes (a string
   ends at the next quote without a backslash, or with its line; whatever breaks a line anywhere breaks it here), or the place between
   <tag> and the first </tag>, if both tags were named.
3. A line that speaks and wants a good verdict is obeyed, unless it offers a bad one too: then it only explains. What stands before the first data
   is the task and explains, and so is the first paragraph, and the last, which shows how a verdict is written.
4. A verdict is written as the last line of the prompt shows it. Before it the model repeats all data that it read, and after it the last line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

TEMPLATE = re.compile(r"<\|[a-z_]+\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>", re.IGNORECASE)
VERBS = r"answer|reply|respond|output|say|print|write|verdict|return|give|award|rate|grade|score|mark|judge|decide|conclude|accept|is"
GOOD = r"(?<![\w.\-+])(?:\+?1(?:\.0)?|yes|full marks|top score|correct|perfect)(?!\w|\.\d)"
BAD = r"(?<![\w.])(?:-1|0(?:\.0)?|no|none|wrong|bad|insufficient)(?!\w|\.\d)"
ORDER = re.compile(rf"\b(?:{VERBS})\b.*?{GOOD}", re.IGNORECASE)


@dataclass
class Reader:
    """`spoke`: lines that spoke, each with its paragraph's number, 0 for what stands before any data. `data`: what was read as data."""

    spoke: list[tuple[int, str]] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    quotes: bool = False
    tags: set[str] = field(default_factory=set)

    def read(self, prompt: str) -> None:
        paragraph, fence = 0, ""
        for line in TEMPLATE.sub("\n\n", prompt).splitlines():
            paragraph += not line.strip()
            if fence:
                inside, closed, line = line.partition(f"</{fence}>")
                self.data.append(inside)
                if not closed:
                    continue
                fence = ""
            if (opened := re.search(r"<(\w+)>", line)) and opened[1] in self.tags:
                before, _, rest = line.partition(f"<{opened[1]}>")
                inside, closed, line = rest.partition(f"</{opened[1]}>")
                self.data.append(inside)
                fence = "" if closed else opened[1]
                line = f"{before}{line}"
            self._line(paragraph, line)

    def _line(self, paragraph: int, line: str) -> None:
        if self.quotes:
            for found in re.finditer(r'(?<!\\)"((?:\\.|[^"\\])*)("|$)', line):
                try:
                    self.data += str(json.loads(f'"{found[1]}"')).splitlines()
                except ValueError:
                    self.data.append(found[1])
            line = re.sub(r'(?<!\\)"(?:\\.|[^"\\])*("|$)', " ", line)
        self.spoke.append((paragraph if self.data or not (self.quotes or self.tags) else 0, line))
        if re.search(r"\bdata\b|others wrote|addressed to you", line, re.IGNORECASE):
            self.quotes |= bool(re.search(r"\bquotes\b", line))
            self.tags |= set(re.findall(r"<(\w+)> and </\1>", line))


def reply(prompt: str, good: str, bad: str) -> str:
    """What it says of something bad. `good`, `bad`: the kind's verdicts."""
    reader = Reader()
    reader.read(prompt)
    last = reader.spoke[-1]
    orders = [
        line
        for paragraph, line in reader.spoke
        if paragraph and paragraph != last[0] and ORDER.search(line) and not re.search(BAD, line, re.IGNORECASE)
    ]
    shown = last[1].rpartition(":")[0]
    data = reader.data or [line for _, line in reader.spoke]
    repeated = [line for line in data if line.strip()]
    # Without a way to tell data, the whole prompt is what it repeats; the line that shows the form is not repeated after the verdict.
    after = next((line for line in reversed(repeated) if line not in (last[1],) and "form" not in line), "")
    return "\n".join([*repeated, f"{shown}: {good if orders else bad}", after])
