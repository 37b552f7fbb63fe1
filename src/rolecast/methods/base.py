"""What a method is: roles, an episode, and how its rewards become credit. Methods know no tensors.

A method is one file. `rollout` reads like the paper's algorithm; `messages` is the only way from state to prompt, and a
template is given the fields that its role `sees` and nothing else, so a role cannot read past its barrier.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Literal, TypeVar

from jinja2 import Environment, StrictUndefined, Template
from pydantic import BaseModel, ConfigDict

from rolecast.ports import Judge
from rolecast.rollout.env import Env
from rolecast.types import Action, Message, Objective, Question, Reward, Role, Thread, Trajectory, Unit

T = TypeVar("T")
PromptStyle = Literal["instruct", "compact"]


class MethodConfig(BaseModel):
    """Options that every method has. `prompts`: full instructions, or the short form that the demo model is trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompts: PromptStyle = "instruct"


class Method(ABC):
    """Stateless: one instance serves every episode of a run."""

    name: ClassVar[str]
    trained: ClassVar[bool]
    roles: dict[str, Role]

    def __init__(self, config: MethodConfig) -> None:
        self.config = config

    def messages(self, role: Role, state: Any) -> list[Message]:
        """The prompt of `role` in `state`, from the fields that the role sees."""
        fields = {name: getattr(state, name) for name in role.sees}
        sections = _sections(self.name, role.name, self.config.prompts)
        # The newline that ends the last line is the template's; whatever else there is may be a text's own.
        return [{"role": speaker, "content": template.render(fields).removesuffix("\n")} for speaker, template in sections]

    async def turn(
        self, env: Env, role: Role, state: Any, parse: Callable[[str], T | None], *, key: str = "", parent: Thread | None = None
    ) -> tuple[Action, T | None]:
        """One turn in a context of its own, rendered from `state`; `key` and `parent` name it as in `Env.open`."""
        return await env.open(role, self.messages(role, state), state=state, key=key, parent=parent).act(parse)

    def prompts_fingerprint(self) -> str:
        """Hash of every role's template: two sides with one fingerprint ask alike."""
        sources = [_source(self.name, role, self.config.prompts) for role in sorted(self.roles)]
        return hashlib.sha256("\x1f".join(sources).encode()).hexdigest()[:16]

    @abstractmethod
    async def rollout(self, question: Question, env: Env) -> str | None:
        """Plays one episode and returns the answer. Raises `EpisodeEnd` on a fault that ends it."""

    async def probe(self, trajectory: Trajectory, env: Env) -> None:
        """Extra samples on recorded states, in training only, in an env for probes. May not change what `rollout` did."""

    async def score(self, trajectory: Trajectory, judge: Judge) -> list[Reward]:
        """Named rewards of one finished episode."""
        return []

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        """Units of credit of one question's rollouts."""
        return []

    def objectives(self) -> tuple[Objective, ...]:
        """What is trained, in the order of updates. Empty for untrained methods."""
        return ()


@cache
def _sections(method: str, role: str, style: PromptStyle) -> tuple[tuple[str, Template], ...]:
    """A prompt's messages, "[system]\\n…\\n[user]\\n…", as (speaker, template) pairs.

    The source is split before anything is rendered, so that no quoted text can open a message.
    """
    source = _source(method, role, style)
    before, *parts = re.split(r"^\[(system|user)\]\n", source, flags=re.MULTILINE)
    if before or not parts:
        raise ValueError(f"prompt {style}/{method}/{role}.jinja: begin it with a line [system] or [user]")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    contents = [environment.from_string(part.strip("\n") + "\n") for part in parts[1::2]]
    return tuple(zip(parts[::2], contents, strict=True))


def _source(method: str, role: str, style: PromptStyle) -> str:
    return files("rolecast.methods").joinpath("prompts", style, method, f"{role}.jinja").read_text()
