"""What an export says of itself: `rolecast.json`, how others load it, and the prompts of its roles."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.installed import version
from rolecast.methods.base import Method
from rolecast.origin import origin
from rolecast.rollout.engines.settings import RANKS
from rolecast.rollout.render import Renderer
from rolecast.stages.run import Run
from rolecast.stages.working import origins
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Observation, Slot, Stage, endpoint_of

log = logging.getLogger(__name__)
FORMAT = 1  # of rolecast.json
TRIED = 16  # episodes of a teacher in which each role is looked for


@dataclass(frozen=True, slots=True)
class Voice:
    """What a slot speaks with, in an export: the model, a folder of it or the name of one that lies elsewhere, and the adapter over it."""

    model: str
    adapter: str | None = None
    rank: int = 0


def about(run: Run, of: Stage, method: Method, voices: Mapping[Slot, Voice]) -> dict[str, Any]:
    """`rolecast.json`. `scores`: of the stage's evaluation, None where it has none."""
    c = run.config
    evaluation = run.evaluation(of.name)
    scores = json.loads((evaluation / "result.json").read_text()) if run.has(evaluation) else None
    roles = {
        name: {"slot": role.slot, "stop": list(role.stop), "max_tokens": role.max_tokens, "sees": sorted(role.sees)}
        for name, role in method.roles.items()
    }
    slots = {slot: {"model": voice.model, "adapter": voice.adapter, "rank": voice.rank or None} for slot, voice in voices.items()}
    return {
        "format": FORMAT, "release": version("rolecast"), "commit": origin()["commit"], "run": run.place, "name": c.name, "stage": of.name,
        "made_by": origins(run).get(of.name, []), "fingerprint": run.fingerprint, "method": method.config.model_dump(mode="json"),
        "prompts": method.prompts_fingerprint(), "roles": roles, "slots": slots,
        "endpoints": sorted({role.slot for role in method.roles.values() if endpoint_of(role.slot) is not None}),
        "dtype": c.model.dtype, "max_context": c.model.max_context, "sampling": {"temperature": 0.0}, "scores": scores,
    }  # fmt: skip


def prompt_files(config: RunConfig, of: Stage, method: Method, renderer: Renderer) -> dict[str, str]:
    """By file name: each role's template, and a prompt that was rendered from it, chat template included, where the teacher has one."""
    files = {f"{role}.jinja": method.template(role) for role in method.roles}
    return files | {f"{role}.txt": text for role, text in _rendered(config, method, renderer).items()}


def _rendered(config: RunConfig, method: Method, renderer: Renderer) -> dict[str, str]:
    """A prompt of each role, from the first of the teacher's episodes on invented worlds that have one."""
    try:
        teacher = method.teacher(TeacherErrors())
    except InputError:
        return {}  # a method without a teacher
    found: dict[str, str] = {}
    for number in range(TRIED):
        episode = throwaway_episode(method, teacher, renderer, config.seed, number, config.model.max_context, config.data.thrown_away)
        for thread in episode.threads:
            first = thread.turns[0] if thread.turns else None
            if isinstance(first, Observation):
                found.setdefault(thread.role, first.text)
        if len(found) == len(method.roles):
            break
    return found


def prompts_guide(told: Mapping[str, Any]) -> str:
    """`prompts/README.md`."""
    rows = [
        f"| {name} | {role['slot']} | {_spoken(told, role['slot'])} | {', '.join(f'`{stop}`' for stop in role['stop'])} | "
        f"{role['max_tokens']} | {', '.join(role['sees'])} |"
        for name, role in told["roles"].items()
    ]
    return "\n".join(
        [
            f"# Prompts of {told['method']['name']}",
            "",
            "`ROLE.jinja` is a role's template: lines `[system]` and `[user]` begin a message, the rest is Jinja over the fields that the role",
            "sees. `ROLE.txt` is a prompt as the model reads it, with the chat template around the messages, of an invented question.",
            "",
            "| role | slot | speaks with | stops after | at most, tokens | sees |",
            "| --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            "A stop string belongs to the reply: the token that completes it is the last one. Texts from outside (questions, passages) must not",
            "bring the chat template's control tokens with them; put a space into what looks like one.",
            "",
        ]
    )


def _spoken(told: Mapping[str, Any], slot: Slot) -> str:
    voice = told["slots"].get(slot)
    if voice is None:
        return "an endpoint"
    model = "the model of this folder" if voice["model"] == "." else f"`{voice['model']}`"
    return f"`{voice['adapter']}` over {model}" if voice["adapter"] else model


def guide(told: Mapping[str, Any]) -> str:
    """`README.md`: how plain transformers, peft and vLLM load what is here."""
    model = next((voice["model"] for voice in told["slots"].values()), ".")
    here = "THIS_FOLDER" if model == "." else f"THIS_FOLDER/{model}" if model.startswith("models/") else model
    name, adapters = told["method"]["name"], {slot: voice for slot, voice in told["slots"].items() if voice["adapter"]}
    return "\n".join(
        [
            f"# {told['name']}, stage {told['stage']}: a team that plays {name}",
            "",
            f"Written by rolecast {told['release']} (commit {told['commit']}). `rolecast.json` says how it was made and what it scored,",
            "`prompts/` which role speaks with what, its stop strings and limits. A team is evaluated greedily.",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")',
            f'model = AutoModelForCausalLM.from_pretrained("{here}", dtype="{told["dtype"]}")',
            *_peft_lines(adapters),
            'prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")',
            'model.generate(**prompt, max_new_tokens=48, stop_strings=["</answer>"], tokenizer=tokenizer)  # of the role that speaks',
            "```",
            "",
            "```console",
            *_vllm_lines(told, adapters, here),
            "```",
            "",
            *(
                ["A slot whose model is another folder has a server of its own.", ""]
                if len({v["model"] for v in told["slots"].values()}) > 1
                else []
            ),
            'Ask it with `"temperature": 0`, the role\'s `stop`, `"include_stop_str_in_output": true`, and `"skip_special_tokens": false`.',
            *(["The adapter's name is the request's `model`."] if adapters else []),
            "",
        ]
    )


def _peft_lines(adapters: Mapping[Slot, Any]) -> list[str]:
    """Peft would make adapters in bfloat16 float32 ones, which compute something else than was trained and sampled."""
    if not adapters:
        return []
    (first, voice), *rest = adapters.items()
    lines = ["", "from peft import PeftModel", ""]
    lines += [
        f'model = PeftModel.from_pretrained(model, "THIS_FOLDER/{voice["adapter"]}", adapter_name="{first}", autocast_adapter_dtype=False)'
    ]
    lines += [
        f'model.load_adapter("THIS_FOLDER/{other["adapter"]}", adapter_name="{slot}", autocast_adapter_dtype=False)' for slot, other in rest
    ]
    return [*lines, f'model.set_adapter("{first}")', ""]


def _vllm_lines(told: Mapping[str, Any], adapters: Mapping[Slot, Any], here: str) -> list[str]:
    """vLLM would round float32 weights by itself, and takes only some numbers as the largest rank."""
    command = [
        f"$ python -m vllm.entrypoints.openai.api_server --model {here} --tokenizer THIS_FOLDER --dtype {told['dtype']} "
        f"--max-model-len {told['max_context']}"
    ]
    if adapters:
        largest = max(voice["rank"] for voice in adapters.values())
        rank = next((rank for rank in RANKS if rank >= largest), largest)
        modules = " ".join(f"{slot}=THIS_FOLDER/{voice['adapter']}" for slot, voice in adapters.items())
        command = [
            f"{command[0]} \\",
            f"    --enable-lora --max-loras {len(adapters)} --max-lora-rank {rank} --lora-modules {modules}",
        ]
    return command
