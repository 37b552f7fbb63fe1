"""What is exported speaks in plain transformers and peft as the team does in our engine: the same prompts, tokens and log-probs."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import DAC, DECOR, begun, ended, greedy, new_run, talkative
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.ports import Completion
from rolecast.rollout.render import Renderer
from rolecast.schedule import find
from rolecast.stages.export import export
from rolecast.stages.run import Run
from rolecast.stages.team import Speakers
from rolecast.store.artifact import verify, writing
from rolecast.store.local import LocalStore
from rolecast.store.uri import fetch
from tests.tiny import TOKENIZER, tiny_model
from tests.weed import S3Server

MESSAGES = [{"role": "system", "content": "Keep the fact."}, {"role": "user", "content": "Who is the mentor of Brol Tan?"}]
NEW = 12
Made = Callable[[Path], Run]
FORMS: dict[str, tuple[Made, str]] = {
    "whole": (lambda path: ended(begun(new_run(path, DECOR, lora=False))), "rl"),
    "merged": (lambda path: ended(begun(new_run(path, DECOR))), "rl"),
    "kept apart": (lambda path: ended(begun(new_run(path, DECOR, "bfloat16"))), "rl"),
    "two adapters": (lambda path: ended(begun(new_run(path, DAC))), "rl"),
    "two adapters, narrow": (lambda path: ended(begun(new_run(path, DAC, "bfloat16"))), "rl"),
    "two models": (lambda path: ended(begun(new_run(path, DAC, lora=False))), "rl"),
    "first stage": (lambda path: begun(new_run(path, DECOR)), "sft"),
}


def ours(run: Run, stage: str) -> tuple[Speakers, Renderer, dict[str, Completion]]:
    """The team, and what our engine says for each slot, greedily."""
    speakers, renderer, _, said = greedy(run, stage, MESSAGES, NEW)
    return speakers, renderer, said


def logprobs_of(model: Any, ids: torch.Tensor, after: int) -> list[float]:
    with torch.no_grad():
        every = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1).gather(-1, ids[0, 1:, None])[:, 0]
    return every[after - 1 :].tolist()


def theirs(out: Path, voice: dict[str, Any]) -> tuple[int, torch.Tensor, list[float]]:
    """How long the prompt is, prompt and greedy continuation (1, tokens), and its log-probs, by plain transformers and peft."""
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out / voice["model"])  # an absolute path stays one
    if voice["adapter"]:
        model = PeftModel.from_pretrained(model, str(out / voice["adapter"]), autocast_adapter_dtype=False)
    inputs = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt")
    prompt = inputs["input_ids"]
    whole = model.generate(**inputs, max_new_tokens=NEW)
    return prompt.shape[1], whole, logprobs_of(model, whole, prompt.shape[1])


@pytest.mark.parametrize("form", FORMS)
def test_every_slot_says_the_same_in_plain_transformers(form: str, tmp_path: Path) -> None:
    make, stage = FORMS[form]
    run = make(tmp_path / "run")
    speakers, renderer, spoken = ours(run, stage)
    export(run, stage, str(tmp_path / "out"))
    told = json.loads((tmp_path / "out" / "rolecast.json").read_text())
    assert set(told["slots"]) == set(speakers) == set(spoken)
    tolerance = 0.05 if run.config.model.dtype == "bfloat16" else 1e-4
    for slot, said in spoken.items():
        after, whole, logprobs = theirs(tmp_path / "out", told["slots"][slot])
        ids = whole[0, after:].tolist()
        assert tuple(whole[0, :after].tolist()) == renderer.prompt(MESSAGES)[0]
        assert tuple(ids) == said.ids, slot
        assert logprobs == pytest.approx(said.logprobs, abs=tolerance)
        assert logprobs == pytest.approx(logprobs_of(speakers[slot](), whole, after), abs=1e-5)  # with a rounded merge it would not be
        assert renderer.decode(ids) == AutoTokenizer.from_pretrained(tmp_path / "out").decode(ids)
    assert all(len(set(said.ids)) > NEW // 2 for said in spoken.values())
    if stage == "rl":
        assert len({said.ids for said in spoken.values()}) == len(spoken)  # or a slot in another's place would pass


@pytest.mark.parametrize("form", ["merged", "kept apart", "two adapters"])
def test_adapters_alone_speak_over_the_base_that_they_name(form: str, tmp_path: Path) -> None:
    make, stage = FORMS[form]
    run = make(tmp_path / "run")
    _, _, spoken = ours(run, stage)
    export(run, stage, str(tmp_path / "out"), adapters=True)
    told = json.loads((tmp_path / "out" / "rolecast.json").read_text())
    assert not list((tmp_path / "out").glob("*.safetensors"))
    for slot, said in spoken.items():
        voice = told["slots"][slot]
        after, whole, logprobs = theirs(tmp_path / "out", voice)
        assert tuple(whole[0, after:].tolist()) == said.ids
        assert logprobs == pytest.approx(said.logprobs, abs=0.05 if form == "kept apart" else 1e-3)
        if slot != "frozen":
            named = json.loads((tmp_path / "out" / voice["adapter"] / "adapter_config.json").read_text())
            assert named["base_model_name_or_path"] == voice["model"]


def test_adapters_name_the_model_that_the_run_began_with_where_it_is_their_base(tmp_path: Path) -> None:
    """A narrow run over a model of one's own, whose first stage merged nothing into it; and one that was trained over another."""
    talkative(1).save_pretrained(tmp_path / "given")
    TOKENIZER.save_pretrained(tmp_path / "given")
    for number, seed in enumerate((1, 2)):
        run = ended(begun(new_run(tmp_path / f"run-{number}", DAC, "bfloat16", path=str(tmp_path / "given")), seed=seed))
        export(run, "rl", str(tmp_path / f"out-{number}"), adapters=True)
        told = json.loads((tmp_path / f"out-{number}" / "rolecast.json").read_text())
        base = tmp_path / "given" if seed == 1 else run.model("rl")
        assert {voice["model"] for voice in told["slots"].values()} == {str(base)}


def test_a_model_that_was_made_with_other_settings_is_not_called_the_runs(tmp_path: Path) -> None:
    run = FORMS["whole"][0](tmp_path / "run")
    with writing(run.model("rl"), "model", {"fixed": "another digest"}) as partial:
        talkative().save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    with pytest.raises(InputError, match="made with other settings"):
        export(run, "rl", str(tmp_path / "out"))


def test_whole_weights_are_no_adapters(tmp_path: Path) -> None:
    run = FORMS["whole"][0](tmp_path / "run")
    with pytest.raises(InputError, match="no adapter for slot shared"):
        export(run, "rl", str(tmp_path / "out"), adapters=True)
    assert not (tmp_path / "out").exists()


def test_adapters_over_a_model_from_scratch_have_no_base_to_name(tmp_path: Path) -> None:
    run = ended(new_run(tmp_path / "run", DECOR), "sft")
    with pytest.raises(InputError, match="made from scratch and lies nowhere"):
        export(run, "sft", str(tmp_path / "out"), adapters=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_what_is_the_same_model_is_there_once(tmp_path: Path) -> None:
    """In bfloat16 the frozen role of RL speaks with the base below the adapter; in float32 with the model before it was merged."""
    export(FORMS["kept apart"][0](tmp_path / "narrow"), "rl", str(tmp_path / "a"))
    assert not (tmp_path / "a" / "models").exists()
    assert json.loads((tmp_path / "a" / "rolecast.json").read_text())["slots"]["frozen"] == {"model": ".", "adapter": None, "rank": None}
    export(FORMS["merged"][0](tmp_path / "wide"), "rl", str(tmp_path / "b"))
    told = json.loads((tmp_path / "b" / "rolecast.json").read_text())["slots"]
    assert told == {name: {"model": place, "adapter": None, "rank": None} for name, place in (("frozen", "models/frozen"), ("shared", "."))}


def test_it_says_how_it_was_made_and_what_it_scored(tmp_path: Path) -> None:
    run = FORMS["two adapters"][0](tmp_path / "run")
    with writing(run.evaluation("rl"), "evaluation", run.made) as partial:
        (partial / "result.json").write_text('{"n": 4, "em": 0.25}')
    export(run, None, str(tmp_path / "out"))
    told = json.loads((tmp_path / "out" / "rolecast.json").read_text())
    assert told["scores"] == {"n": 4, "em": 0.25}
    assert (told["stage"], told["fingerprint"], told["method"]["name"]) == ("rl", run.fingerprint, "dac")
    assert {name: (role["slot"], role["stop"]) for name, role in told["roles"].items()} == {
        name: (role.slot, list(role.stop)) for name, role in run.config.method_in(find(run.config.schedule, "rl")).roles.items()
    }
    assert told["slots"]["searcher"]["rank"] == 4
    guide = (tmp_path / "out" / "README.md").read_text()
    assert "--max-lora-rank 8 --lora-modules generator=THIS_FOLDER/adapters/generator searcher=THIS_FOLDER/adapters/searcher" in guide
    assert verify(tmp_path / "out", "export")["provenance"]["stage"] == "rl"


@pytest.mark.parametrize(
    ("form", "alone"), [("two adapters", False), ("two adapters, narrow", True), ("whole", False), ("two models", False)]
)
def test_its_guide_loads_it(form: str, alone: bool, tmp_path: Path) -> None:
    make, stage = FORMS[form]
    run = make(tmp_path / "run")
    export(run, stage, str(tmp_path / "out"), adapters=alone)
    [snippet] = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.DOTALL)
    known: dict[str, Any] = {"messages": MESSAGES}
    exec(snippet.replace("THIS_FOLDER", str(tmp_path / "out")), known)
    speakers, renderer, _ = ours(run, stage)
    ids = torch.tensor([renderer.prompt(MESSAGES)[0]])
    first = min(speaker for speaker in speakers if speaker != "frozen")
    assert logprobs_of(known["model"], ids, 1) == pytest.approx(logprobs_of(speakers[first](), ids, 1), abs=1e-5)


def test_prompts_are_the_templates_and_what_the_model_reads(tmp_path: Path) -> None:
    run = FORMS["whole"][0](tmp_path / "run")
    method = run.config.method_in(find(run.config.schedule, "rl"))
    export(run, "rl", str(tmp_path / "out"))
    prompts = tmp_path / "out" / "prompts"
    assert {role: (prompts / f"{role}.jinja").read_text() for role in method.roles} == {
        role: method.template(role) for role in method.roles
    }
    rendered = (prompts / "filter.txt").read_text()
    assert rendered.startswith("<|user|>filter query: ")
    assert rendered.endswith("<|assistant|>")
    guide = (prompts / "README.md").read_text()
    assert "| filter | shared | the model of this folder | `</filter>` | 12 | documents, sub_query |" in guide
    assert "| condenser | frozen | `models/frozen` |" in guide


def test_generation_is_not_what_the_makers_of_the_start_model_liked(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", DECOR, lora=False)
    with writing(run.model("sft"), "model", {}) as partial:
        model = tiny_model(1)
        model.generation_config.update(eos_token_id=[1, 7], top_p=0.8, repetition_penalty=1.3, temperature=0.6, do_sample=True)
        model.save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    export(run, "sft", str(tmp_path / "out"))
    told = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert told.pop("eos_token_id") == [1, 7]
    assert {"top_p", "repetition_penalty", "temperature"}.isdisjoint(told)
    assert told["do_sample"] is False


# A template with no place for system messages: one that says so, and one that leaves them out.
REFUSES = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
IGNORES = "\n{% for m in messages if m['role'] != 'system' %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
SAID = {
    "system and user": MESSAGES,
    "user alone": MESSAGES[1:],
    "system alone": MESSAGES[:1],
    "several": [MESSAGES[1], MESSAGES[0], {"role": "assistant", "content": "Kel"}, MESSAGES[0], MESSAGES[1]],
}


@pytest.mark.parametrize("template", [REFUSES, IGNORES])
@pytest.mark.parametrize("said", SAID)
def test_a_template_without_system_messages_takes_them_as_ours_does(template: str, said: str, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", DECOR, lora=False)
    with writing(run.model("sft"), "model", {}) as partial:
        tiny_model(1).save_pretrained(partial)
        tokenizer = AutoTokenizer.from_pretrained(_tokenizer(tmp_path, template))
        tokenizer.save_pretrained(partial)
    export(run, "sft", str(tmp_path / "out"))
    ids = AutoTokenizer.from_pretrained(tmp_path / "out").apply_chat_template(SAID[said], add_generation_prompt=True)["input_ids"]
    expected, text = Renderer(tokenizer).prompt(SAID[said])
    assert tuple(ids) == expected
    assert "Keep the fact." in text or said == "user alone"


def test_of_several_templates_the_one_that_we_render_with_is_there(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", DECOR, lora=False)
    tokenizer = AutoTokenizer.from_pretrained(_tokenizer(tmp_path, IGNORES))
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": REFUSES}
    with writing(run.model("sft"), "model", {}) as partial:
        tiny_model(1).save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    export(run, "sft", str(tmp_path / "out"))
    ids = AutoTokenizer.from_pretrained(tmp_path / "out").apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert tuple(ids) == Renderer(tokenizer).prompt(MESSAGES)[0]


def _tokenizer(tmp_path: Path, template: str) -> Path:
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text(template)
    return tmp_path / "tokenizer"


def test_an_export_is_written_anew_and_nothing_else_is(tmp_path: Path) -> None:
    run = FORMS["first stage"][0](tmp_path / "run")
    out = tmp_path / "out"
    export(run, "sft", str(out))
    export(run, "sft", str(out))  # its own
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"to which notes\.txt was added"):
        export(run, "sft", str(out))
    (out / "notes.txt").unlink()
    (out / "README.md").write_text("my words")
    with pytest.raises(InputError, match="was changed since"):
        export(run, "sft", str(out))
    assert (out / "README.md").read_text() == "my words"
    for other in (run.path, run.model("sft"), _tokenizer(tmp_path, REFUSES)):
        with pytest.raises(InputError, match="is no export"):
            export(run, "sft", str(other))
    verify(run.model("sft"), "model")


def test_one_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FORMS["first stage"][0](tmp_path / "run")
    out = tmp_path / "out"
    export(run, "sft", str(out))
    before = (out / "manifest.json").read_bytes()

    def fails(*given: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("rolecast.stages.export.prompts_guide", fails)
    for place in (out, tmp_path / "new"):
        with pytest.raises(OSError, match="no space"):
            export(run, "sft", str(place))
    assert (out / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_run_in_a_store_is_exported_to_a_store(tmp_path: Path, weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**weed.environ, "ROLECAST_WORKDIR": str(tmp_path / "work")}.items():
        monkeypatch.setenv(name, value)
    bucket = weed.make_bucket(f"ex-{uuid.uuid4().hex[:12]}")
    run = ended(begun(new_run(f"s3://{bucket}/runs/a", DAC)))
    for stage in ("sft", "rl"):
        run.publish(run.model(stage))
    out = f"s3://{bucket}/exports/a"
    assert export(run, "rl", out) == out
    copy = fetch(out, tmp_path / "copy")
    told = json.loads((copy / "adapters" / "searcher" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == out
    assert load_file(copy / "adapters" / "searcher" / "adapter_model.safetensors").keys()
    with pytest.raises(InputError, match="exists"):
        export(run, "rl", out)


def test_a_stage_that_has_not_ended_has_nothing_to_export(tmp_path: Path) -> None:
    run = Run(tmp_path / "elsewhere", RunConfig(), LocalStore(tmp_path / "store"))
    with pytest.raises(InputError, match="has no rl model"):
        export(run, "rl", str(tmp_path / "out"))
