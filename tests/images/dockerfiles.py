"""What is read of a Dockerfile: its stages, each a list of instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
PARTS = ("control", "retriever", "judge", "rollout", "learner", "agent")
CUDA_PARTS = ("retriever", "rollout", "learner")
CPU = tuple(IMAGES / part / "Dockerfile" for part in PARTS)
CUDA = tuple(IMAGES / part / "Dockerfile.cuda" for part in CUDA_PARTS)
ALL = CPU + CUDA


@dataclass
class Stage:
    base: str  # what FROM names, with arguments of the file's head filled in
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)  # (keyword, the rest)

    def all(self, keyword: str) -> list[str]:
        return [rest for key, rest in self.instructions if key == keyword]

    @property
    def environment(self) -> dict[str, str]:
        return dict(re.findall(r"([A-Z_0-9]+)=(\S+)", " ".join(self.all("ENV"))))


def stages(text: str) -> list[Stage]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found: list[Stage] = []
    defaults: dict[str, str] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base), name))
        elif found:
            found[-1].instructions.append((keyword, " ".join(rest.split())))
        else:
            assert keyword == "ARG", line
            key, _, value = rest.partition("=")
            defaults[key] = value
    return found


def arguments(text: str) -> dict[str, str]:
    """Every build argument with its default."""
    return dict(re.findall(r"^ARG (\w+)=?(.*)$", text, re.MULTILINE))


def locked(file: Path) -> dict[str, str]:
    """Versions by normalised name."""
    pins = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return dict(pin.split("==") for pin in pins)
