"""What is read of the Dockerfile: its stages, each a list of instructions, and the images that they end in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
DOCKERFILE = IMAGES / "Dockerfile"
PARTS = ("control", "retriever", "judge", "rollout", "learner", "agent")
CUDA_PARTS = ("retriever", "rollout", "learner")
CUDA = tuple(f"{part}-cuda" for part in CUDA_PARTS)
ALL = PARTS + CUDA


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

    @property
    def sources(self) -> list[str]:
        """Files of the tree that it copies."""
        return [source for copy in self.all("COPY") if not copy.startswith("--from=") for source in copy.split()[:-1]]


def stages(text: str) -> dict[str, Stage]:
    """By name, in their order."""
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
    return {stage.name: stage for stage in found}


STAGES = stages(DOCKERFILE.read_text())


def whole(name: str) -> Stage:
    """A stage with all that the stages say which it is built upon."""
    stage = STAGES[name]
    if stage.base not in STAGES:
        return stage
    below = whole(stage.base)
    return Stage(below.base, name, below.instructions + stage.instructions)


def built(name: str) -> list[Stage]:
    """The stages that an image copies from, and theirs."""
    copied = [copy.split()[0].removeprefix("--from=") for copy in whole(name).all("COPY") if copy.startswith("--from=")]
    return [stage for source in copied for stage in (whole(source), *built(source))]


def arguments(text: str) -> dict[str, str]:
    """Every build argument with its default."""
    return dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))


def locked(file: Path) -> dict[str, str]:
    """Versions by normalised name."""
    pins = [line.partition(" ")[0] for line in file.read_text().splitlines() if not line.startswith("#")]
    return dict(pin.split("==") for pin in pins)


def lock_of(image: str) -> Path:
    part = image.removesuffix("-cuda")
    return IMAGES / part / ("requirements-cuda.lock" if image in CUDA else "requirements.lock")
