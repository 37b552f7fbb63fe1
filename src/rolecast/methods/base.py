"""What a method is: roles, an episode, and how its rewards become credit. Methods know no tensors.

A method is one folder. `rollout` reads like the paper's algorithm; `messages` is the only way from state to prompt, and a
template is given the fields that its role `sees` and nothing else, so a role cannot read past its barrier.
"""

from __future__ import annotations

import copy
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, Literal, Self, TypeVar

from jinja2 import Environment, StrictUndefined, Template, TemplateError
from jinja2.meta import find_undeclared_variables
from pydantic import BaseModel, Field

from rolecast.errors import InputError
from rolecast.identity import ADDED
from rolecast.judge.kinds import ANSWER, JudgeKind, Rule
from rolecast.ports import Embed, Judge
from rolecast.reading import CLOSED
from rolecast.rollout.env import Env, Phase
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.teachers.thoughts import Thoughts
from rolecast.types import (
    Action,
    Example,
    ImitationTerm,
    Message,
    Objective,
    Question,
    Reward,
    Role,
    Slot,
    Stage,
    Thread,
    Trajectory,
    Unit,
    endpoint_of,
)

T = TypeVar("T")
PromptStyle = Literal["instruct", "compact"]
DynamicSampling = Literal["group", "trajectory", "off"]
DOCUMENTS = "documents"  # of `Question.given`: ids of passages that an episode answers from instead of searching
_JINJA = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)


class MethodConfig(BaseModel):
    """Options that every method has; a method's own type adds the rest, and a default for `name`. Reading a config fills in `plugin`,
    so that a run says what it ran.
    """

    model_config = CLOSED

    name: str  # which method
    # the distribution that it comes from (toy-methods==1.2), null for this package's; filled in by reading a config
    plugin: str | None = None
    prompts: PromptStyle = "instruct"  # full instructions, or the short form that the demo model is trained on
    # tokens that all roles of an episode may sample together, probes excepted; one that would take more ends as one whose context is full
    episode_tokens: int | None = Field(None, ge=1, json_schema_extra=ADDED)


@dataclass(frozen=True, slots=True)
class Spoken:
    """How often a role speaks: contexts, and replies in each."""

    contexts: int
    replies: int = 1


@dataclass(frozen=True, slots=True)
class Most:
    """What one episode takes at most, silent roles included. `probes`: what training adds to what is `said`; `searches`: queries, those of
    probes too; `judged`: what the judge is asked."""

    said: Mapping[str, Spoken]
    searches: int = 0
    judged: int = 0
    probes: Mapping[str, Spoken] = field(default_factory=dict)


class Method(ABC):
    """Stateless: one instance serves every episode of a run. `methods.registry.register` makes a class known.

    `presets`: the configs in the folder's presets/, by name, the demo's own first. `words`: what its compact prompts and its teacher say
    that a model from scratch is to know as one token each (`world.tokenizer`). `probed`: the phases in which `probe` is called; `taught`:
    those that SFT's episodes are played in, in turns, for a method whose prompts differ between them. `fixed`: whether `rollout` answers
    from the passages whose ids `question.given` has as `DOCUMENTS`, where it has them.
    """

    name: ClassVar[str]
    trained: ClassVar[bool]
    config_type: ClassVar[type[MethodConfig]]
    presets: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[tuple[str, ...]] = ()
    probed: ClassVar[frozenset[Phase]] = frozenset({"train"})
    taught: ClassVar[tuple[Phase, ...]] = ("train",)
    fixed: ClassVar[bool] = False
    package: ClassVar[str]  # the folder with prompts/ and presets/, as `register` finds it
    roles: dict[str, Role]
    silent: frozenset[str] = frozenset()  # roles that the stage's episodes do without: `rollout` ends before them

    def __init__(self, config: MethodConfig) -> None:
        self.config = config

    @property
    def k(self) -> int:
        """Passages of one search; 0 where it does not search."""
        return 0

    @property
    def measured(self) -> Sequence[str]:
        """The tasks (`evaluation.tasks`) that all its models are evaluated by, whatever their stages select on; the first has the
        headline. Empty: each by the task of its stage."""
        return ()

    @property
    def dynamic_sampling(self) -> DynamicSampling:
        """`group`: groups without variance are drawn again; `trajectory`: also, rollouts with 0 < R < 1 only (DECOR 4.4)."""
        return "off"

    @property
    def thoughts(self) -> Thoughts:
        """How its teacher words what it thinks: full instructions are read by language models, the short form by the demo's small one."""
        return Thoughts(sentences=self.config.prompts == "instruct")

    def teacher(self, errors: TeacherErrors) -> Teacher:
        """Who the rows of SFT are drawn from."""
        raise InputError(f"method {self.name} has no teacher: give it one ({type(self).__name__}.teacher), or set sft.steps to 0")

    @classmethod
    def judge_kinds(cls) -> Sequence[JudgeKind]:
        """What a judge is asked of this method's roles. `answer` is shared and always there."""
        return ()

    @property
    def judged(self) -> Sequence[JudgeKind]:
        """Those of its kinds whose verdicts count for credit: without any, RL learns nothing."""
        return self.judge_kinds()

    @property
    def unjudged(self) -> str:
        """How RL does without the verdicts on roles, as an option for whoever has no judge for them; "" where it cannot."""
        return ""

    @property
    def most(self) -> Most | None:
        """Upper bounds of an episode, for `rolecast plan`; None where the options alone give none."""
        return None

    @classmethod
    def asks(cls) -> list[str]:
        """Names of all kinds that a judge may be asked."""
        return [ANSWER.name, *(kind.name for kind in cls.judge_kinds())]

    @classmethod
    def verdicts(cls) -> Mapping[str, Rule]:
        """The lexical judge's rule for each of these kinds; a kind without one is unscored by it."""
        return {}

    @classmethod
    def preset(cls, name: str = "") -> Traversable:
        """The file of a preset, of the first one by default."""
        if not cls.presets:
            raise InputError(f"method {cls.name} has no presets; write a config and use `rolecast pipeline run`")
        if name and name not in cls.presets:
            raise InputError(f"method {cls.name} has no preset {name!r}; it has {', '.join(cls.presets)}")
        return files(cls.package).joinpath("presets", f"{name or cls.presets[0]}.yaml")

    @property
    def spoken(self) -> frozenset[Slot]:
        """The slots of the team that its roles speak with."""
        return frozenset(role.slot for role in self.roles.values() if endpoint_of(role.slot) is None)

    @property
    def endpoints(self) -> frozenset[str]:
        """The names of the endpoints that its other roles speak through."""
        return frozenset(name for role in self.roles.values() if (name := endpoint_of(role.slot)) is not None)

    def in_stage(self, stage: Stage, lengths: Mapping[str, int] | None = None, cast: Mapping[str, Slot] | None = None) -> Self:
        """The method as this stage's episodes play it: the slots that its roles speak with, the roles that are silent, `lengths`, other
        limits of tokens for some roles, and `cast`, others who speak for some."""
        limits, slots = lengths or {}, {**stage.slots, **(cast or {})}
        staged = copy.copy(self)
        staged.roles = {
            name: replace(role, slot=slots.get(name, role.slot), max_tokens=limits.get(name, role.max_tokens))
            for name, role in self.roles.items()
        }
        staged.silent = frozenset(stage.silent)
        return staged

    def whole(self) -> Self:
        """The method with no role silent, as it is evaluated and served."""
        whole = copy.copy(self)
        whole.silent = frozenset()
        return whole

    def messages(self, role: Role, state: Any) -> list[Message]:
        """The prompt of `role` in `state`, from the fields that the role sees."""
        if missing := sorted(name for name in role.sees if not hasattr(state, name)):
            raise InputError(
                f"method {self.name}: role {role.name} sees {missing[0]!r}, which its state, {type(state).__name__}, does not have"
            )
        fields = {name: getattr(state, name) for name in role.sees}
        sections = _sections(type(self), role.name, self.config.prompts)
        # The newline that ends the last line is the template's; whatever else there is may be a text's own.
        return [{"role": speaker, "content": template.render(fields).removesuffix("\n")} for speaker, template in sections]

    async def turn(
        self, env: Env, role: Role, state: Any, parse: Callable[[str], T | None], *, key: str = "", parent: Thread | None = None
    ) -> tuple[Action, T | None]:
        """One turn in a context of its own, rendered from `state`; `key` and `parent` name it as in `Env.open`."""
        return await env.open(role, self.messages(role, state), state=state, key=key, parent=parent).act(parse)

    @property
    def tags(self) -> frozenset[str]:
        """The tags that the roles' instructions and stop strings name: `<search>`, `</search>`, `<|end_search_query|>`, …"""
        texts = [text for role in self.roles.values() for text in (_source(type(self), role.name, "instruct"), *role.stop)]
        pairs = {f"<{slash}{tag}>" for text in texts for tag in re.findall(r"</?(\w+)>", text) for slash in ("", "/")}
        return frozenset(pairs.union(*(re.findall(r"<\|\w+\|>", text) for text in texts)))

    def check_prompts(self) -> None:
        """Raises InputError for a role without a prompt, or with one that cannot be read or names what the role does not see."""
        for role in self.roles.values():
            if unseen := sorted(_named(type(self), role.name, self.config.prompts) - role.sees):
                raise InputError(
                    f"method {self.name}: the prompt of {role.name} names {unseen[0]!r}, which the role does not see; it sees "
                    f"{', '.join(sorted(role.sees)) or 'nothing'}"
                )

    def template(self, role: str) -> str:
        """The source of the role's prompt, in the style that the config names."""
        return _source(type(self), role, self.config.prompts)

    def prompts_fingerprint(self) -> str:
        """Hash of every role's template: two sides with one fingerprint ask alike."""
        sources = [self.template(role) for role in sorted(self.roles)]
        return hashlib.sha256("\x1f".join(sources).encode()).hexdigest()[:16]

    @abstractmethod
    async def rollout(self, question: Question, env: Env) -> str | None:
        """Plays one episode and returns the answer. Raises `EpisodeEnd` on a fault that ends it.

        `question.given` is what `prepare` kept of an earlier stage's episode, empty where nothing is prepared: then all is played.
        """

    async def probe(self, trajectory: Trajectory, env: Env) -> None:
        """Extra samples on recorded states, in an env for probes: in training, and in evaluation where `probed` says so (`env.phase`).

        May not change what `rollout` did. An `Overflow` is the caller's to catch: what has no room is no sample.
        """

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """Named rewards of one finished episode. `embed`: the retriever's encoder."""
        return []

    def diagnostics(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """What this method tells of scored episodes besides the task's scores: of a step's rollouts, and of an evaluation's."""
        return {}

    def alarms(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        """What is wrong, by name, in one line each with the next step, as far as a stage's metrics so far show it, the last step's
        row last. `diagnostics` stand there under "method/NAME".
        """
        return {}

    def prepare(self, trajectory: Trajectory) -> Mapping[str, Any] | None:
        """Of a finished and scored episode of a rollout stage: what `given` of a later stage's question adds, as JSON has it.

        None leaves the episode out. Nothing of the gold may be in it: roles will see it.
        """
        return None

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        """Units of credit of one question's rollouts."""
        return []

    def examples(self, group: Sequence[Trajectory]) -> list[Example]:
        """Supervised rows that one question's rollouts give rise to, for objectives with an imitation term."""
        return []

    def schedule(self) -> tuple[Stage, ...]:
        """The stages that a run goes through, in order. Empty where there is nothing to train."""
        return ()


def imitation(name: str, *slots: Slot) -> tuple[Objective, ...]:
    """What an SFT stage trains: each slot on the turns of the roles that speak with it. The stage's settings give the rate."""
    return tuple(Objective(f"{name}.{slot}" if len(slots) > 1 else name, slot, lr=0.0, imitation=ImitationTerm()) for slot in slots)


@cache
def _sections(method: type[Method], role: str, style: PromptStyle) -> tuple[tuple[str, Template], ...]:
    """A prompt's messages, "[system]\\n…\\n[user]\\n…", as (speaker, template) pairs.

    The source is split before anything is rendered, so that no quoted text can open a message.
    """
    source = _source(method, role, style)
    before, *parts = re.split(r"^\[(system|user)\]\n", source, flags=re.MULTILINE)
    if before or not parts:
        raise ValueError(f"method {method.name}, prompts/{style}/{role}.jinja: begin it with a line [system] or [user]")
    contents = [_template(part.strip("\n") + "\n") for part in parts[1::2]]
    return tuple(zip(parts[::2], contents, strict=True))


def _template(source: str) -> Template:
    """With jinja's own names in a dict of its own: from the chain that it keeps them in by default, each rendering copies them slowly."""
    template = _JINJA.from_string(source)
    template.globals = dict(template.globals)
    return template


@cache
def _named(method: type[Method], role: str, style: PromptStyle) -> frozenset[str]:
    """What a role's prompt names."""
    try:
        _sections(method, role, style)
        return frozenset(find_undeclared_variables(_JINJA.parse(_source(method, role, style))))
    except (ValueError, TemplateError) as error:
        raise InputError(f"method {method.name}: the prompt of {role} cannot be read: {error}") from None


def _source(method: type[Method], role: str, style: PromptStyle) -> str:
    """A template of the style's own, or the one that serves both."""
    for place in (f"prompts/{style}/{role}.jinja", f"prompts/{role}.jinja"):
        try:
            return files(method.package).joinpath(place).read_text()
        except (FileNotFoundError, NotADirectoryError, TypeError):  # TypeError: the package is a lone module, which has no folder
            continue
    raise InputError(
        f"method {method.name} has no prompts/{role}.jinja in the folder of {method.package}, which tells the role what to do; write it, or one "
        f"for each style (prompts/{style}/{role}.jinja)"
    )
