"""vLLM's engine over a stand-in for vLLM: what is asked of it, what is made of its replies, and what is refused. The real one has
tests of its own (tests/contract/test_vllm_weights.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rolecast.config import make_config
from rolecast.errors import EngineError, ExternalError, InputError, SamplingError
from rolecast.loops import OwnLoop
from rolecast.ports import Aborted, GenerateRequest, Sampling
from rolecast.rollout.engines import vllm as module
from rolecast.rollout.engines.factory import disk_engine
from rolecast.rollout.engines.settings import VllmConfig
from rolecast.rollout.engines.stops import cut
from rolecast.rollout.engines.vllm import VllmEngine, arguments, parameters
from rolecast.rollout.engines.vllm_adapters import check_adapter, check_precision, room_for, silence
from rolecast.weights.adapters import CONFIG, WEIGHTS
from rolecast.weights.canary import Canary
from rolecast.weights.placed import Placed
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting
from rolecast.weights.versions import CanaryError
from tests.tiny import RENDERER, TOKENIZER, tiny_model, tiny_team

CONF = VllmConfig(name="vllm", max_batch=8)
CANARY = Canary((5, 6, 7), (-1.0, -1.0))
DUET = Casting(frozenset({"planner", "answerer"}), ("planner", "answerer"))


class Dead(Exception):
    pass


@dataclass
class Stand:
    """vLLM's module and its engine in one: every log-prob is −1, and every reply `reply`."""

    reply: tuple[int, ...] = (11, 12, 13)
    reason: str = "length"
    logprob: float = -1.0
    known: bool = True  # tells the base from adapters
    swappable: bool = True
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    fault: Exception | None = None
    errored: bool = False
    idle: bool = True
    slow: bool = False  # answers what was sampled when the request is aborted
    late: int = 0  # that many times a request that is aborted has not arrived
    flying: dict[str, asyncio.Event] = field(default_factory=dict)

    def start(self, arguments: Mapping[str, Any]) -> Stand:
        self.calls.append(("start", arguments))
        return self

    def shutdown(self, llm: Any, timeout: float) -> None:
        self.calls.append(("shutdown",))

    def tells_base_apart(self) -> bool:
        return self.known

    def swaps(self, llm: Any, under_adapters: bool) -> bool:
        return self.swappable

    async def swap(self, llm: Any, base: Path) -> bool:
        self.calls.append(("swap", base))
        return self.idle

    def adapter(self, name: str, number: int, folder: Path) -> Any:
        return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=folder)

    async def add_lora(self, lora: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.calls.append(("add", lora.lora_name, lora.lora_int_id))

    async def remove_lora(self, number: int) -> None:
        self.calls.append(("remove", number))

    def block_of(self, llm: Any) -> int:
        return 16

    def dead(self) -> tuple[type[Exception], ...]:
        return (Dead,)

    async def answer(self, llm: Any, ids: Any, asked: Mapping[str, Any], key: str, lora: Any, urgency: int = 0) -> Any:
        self.calls.append(("ask", key, dict(asked), lora.lora_name if lora else None, urgency))
        if self.fault is not None and not key.startswith("canary"):
            raise self.fault
        if self.slow:
            self.flying[key] = asyncio.Event()
            await self.flying[key].wait()
        reply = SimpleNamespace(token_ids=list(self.reply), finish_reason=self.reason)
        return SimpleNamespace(outputs=[reply], num_cached_tokens=0, prompt_token_ids=list(ids))

    async def abort(self, llm: Any, key: str) -> None:
        self.calls.append(("abort", key))
        if self.late:  # it has not arrived yet
            self.late -= 1
        else:
            self.flying[key].set()

    def sampled_logprobs(self, output: Any) -> tuple[float, ...]:
        return (self.logprob,) * len(output.outputs[0].token_ids)

    def prompt_logprobs(self, output: Any) -> tuple[float, ...]:
        return (-1.0,) * (len(output.prompt_token_ids) - 1)

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == kind]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny_model().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    tiny_team(DUET, lora=LoraConfig(rank=4)).save(["planner", "answerer"], tmp_path)
    return {slot: tmp_path / "slots" / slot for slot in ("planner", "answerer")}


def placed(base: Path, adapters: Mapping[str, Path | None], version: str = "run/1.0") -> Placed:
    return Placed(version, base, base, adapters, dict.fromkeys(adapters, CANARY))


def loaded(stand: Stand, base: Path, adapters: Mapping[str, Path | None] | None = None, config: VllmConfig = CONF) -> VllmEngine:
    engine = VllmEngine(config, RENDERER, 128, "float32", stand)
    engine.load(placed(base, adapters or {"shared": None}))
    return engine


def ask(engine: VllmEngine, slot: str = "shared", stop: tuple[str, ...] = ()) -> Any:
    return asyncio.run(engine.generate(GenerateRequest((1, 2), slot, 8, stop, Sampling(0.7, 0.9), 2**63 + 5, "t#0")))


def test_what_a_request_says_is_asked_and_a_seed_only_where_it_is_wanted(base: Path) -> None:
    request = GenerateRequest((1, 2), "shared", 8, ("</answer>",), Sampling(0.7, 0.9), 2**63 + 5)
    told = {"temperature": 0.7, "top_p": 0.9, "stop": ["</answer>"], "stop_token_ids": [3, 9], "detokenize": True, "max_tokens": 8}
    assert parameters(request, frozenset({9, 3}), False) == {**told, "seed": None}
    assert parameters(request, frozenset({9, 3}), True) == {**told, "seed": 5}
    stand = Stand()
    ask(loaded(stand, base))
    assert stand.of("ask")[-1][1]["stop_token_ids"] == [TOKENIZER.eos_token_id]


def test_the_engine_is_started_for_what_is_sampled(base: Path, adapters: dict[str, Path]) -> None:
    given = arguments(CONF, placed(base, adapters), 8, 2, 128, "bfloat16")
    assert (given["logprobs_mode"], given["generation_config"], given["dtype"]) == ("processed_logprobs", "vllm", "bfloat16")
    assert (given["max_loras"], given["max_lora_rank"], given["max_cpu_loras"]) == (2, 8, 6)
    assert given["seed"] != arguments(CONF, placed(base, adapters), 8, 2, 128, "bfloat16")["seed"]
    assert "enable_lora" not in arguments(CONF, placed(base, {"shared": None}), 0, 0, 128, "float32")


def test_a_version_s_adapters_get_new_names_and_numbers_and_are_loaded_before_the_old_ones_go(
    base: Path, adapters: dict[str, Path]
) -> None:
    stand = Stand()
    engine = loaded(stand, base, adapters, CONF.model_copy(update={"staleness": 0}))
    first = stand.of("add")
    assert [name for name, _ in first] == ["run/1.0:planner#1", "run/1.0:answerer#2"]
    stand.calls.clear()
    engine.load(placed(base, adapters, "run/1.1"))
    engine.load(placed(base, adapters, "run/1.1"))
    told = stand.of("add")
    assert len({number for _, number in [*first, *told]}) == len({name for name, _ in [*first, *told]}) == 6
    kinds = [call[0] for call in stand.calls if call[0] in ("add", "remove")]
    assert kinds == ["add", "add", "remove", "remove"] * 2
    assert [number for (number,) in stand.of("remove")] == [1, 2, 3, 4]
    ask(engine, "answerer")
    assert stand.of("ask")[-1][2] == "run/1.1:answerer#6"


def test_an_episode_that_began_with_an_older_version_speaks_with_that_as_long_as_it_is_kept(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    stand = Stand()
    engine = loaded(stand, base, adapters)
    engine.load(placed(base, adapters, "run/1.1"))
    assert not stand.of("remove")

    def said(version: str) -> tuple[str, str]:
        request = GenerateRequest((1, 2), "planner", 8, (), Sampling(), 0, "t#0", version=version)
        return asyncio.run(engine.generate(request)).version, stand.of("ask")[-1][2]

    assert said("run/1.0") == ("run/1.0", "run/1.0:planner#1")
    assert said("run/1.1") == said("") == ("run/1.1", "run/1.1:planner#3")
    engine.load(placed(base, adapters, "run/1.2"))
    assert [number for (number,) in stand.of("remove")] == [1, 2]
    assert said("run/1.1") == ("run/1.1", "run/1.1:planner#3")
    with pytest.raises(ExternalError, match=r"t#0 began with version run/1.0, which has gone, and run/1.2 answers; raise engine.staleness"):
        said("run/1.0")
    other = tmp_path / "other"
    tiny_model(1).save_pretrained(other)
    engine.load(placed(other, adapters, "run/1.3"))
    with pytest.raises(ExternalError, match=r"began with version run/1.2, which has gone"):
        said("run/1.2")


def test_older_versions_answer_those_that_began_with_them_while_a_new_one_is_refused(base: Path, adapters: dict[str, Path]) -> None:
    engine = loaded(Stand(), base, adapters)
    with pytest.raises(CanaryError):
        engine.load(replace(placed(base, adapters, "run/1.1"), canaries=dict.fromkeys(adapters, Canary((5, 6, 7), (-9.0, -9.0)))))
    with pytest.raises(EngineError, match="plays none"):
        ask(engine, "planner")
    request = GenerateRequest((1, 2), "planner", 8, (), Sampling(), 0, "t#0", version="run/1.0")
    assert asyncio.run(engine.generate(request)).version == "run/1.0"


@pytest.mark.parametrize("late", [0, 2])
def test_a_request_whose_caller_is_cancelled_is_ended_in_vllm_and_tells_what_it_sampled(
    base: Path, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETOLD", 0.01)
    stand = Stand()
    engine = loaded(stand, base)
    stand.slow, stand.late = True, late

    async def cancelled() -> tuple[int, ...]:
        asking = asyncio.ensure_future(engine.generate(GenerateRequest((1, 2), "shared", 8, (), Sampling(), 0, "t#0")))
        while not stand.flying:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(Aborted) as end:
            await asking
        return end.value.ids

    before = engine.generated
    assert asyncio.run(asyncio.wait_for(cancelled(), 5)) == stand.reply
    assert engine.generated == before + len(stand.reply)
    key = stand.of("ask")[-1][0]
    assert stand.of("abort") == [(key,)] * (late + 1)


def test_it_lives_in_the_loop_of_those_who_ask(base: Path, adapters: dict[str, Path]) -> None:
    """Loaded before, between and, from another thread, during their runs; a caller that is cancelled ends its request."""
    stand, home = Stand(), OwnLoop()
    engine = VllmEngine(CONF, RENDERER, 128, "float32", stand, home=home)
    engine.load(placed(base, adapters))
    loops: list[object] = []
    answer = stand.answer

    async def answered(*given: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        return await answer(*given)

    stand.answer = answered  # type: ignore[method-assign]
    request = GenerateRequest((1, 2), "planner", 8, (), Sampling(), 0, "t#0")

    async def play() -> tuple[str, tuple[int, ...]]:
        stand.slow = True
        asking = asyncio.ensure_future(engine.generate(request))
        while not stand.flying:
            await asyncio.sleep(0.001)
        stand.slow = False
        await asyncio.to_thread(engine.load, placed(base, adapters, "run/1.1"))
        said = await engine.generate(request)
        asking.cancel()
        with pytest.raises(Aborted) as end:
            await asking
        return said.version, end.value.ids

    assert home.runner.run(asyncio.wait_for(play(), 10)) == ("run/1.1", stand.reply)
    engine.load(placed(base, adapters, "run/1.2"))
    assert home.runner.run(engine.generate(request)).version == "run/1.2"
    assert {*loops} == {home.runner.get_loop()}
    home.runner.close()
    engine.close()
    assert stand.of("shutdown") == [()]


def test_what_fails_while_it_is_ended_was_ended(base: Path) -> None:
    stand = Stand(slow=False)
    engine = loaded(stand, base)
    stand.slow = True
    stand.abort = None  # type: ignore[assignment,method-assign]

    async def cancelled() -> None:
        asking = asyncio.ensure_future(engine.generate(GenerateRequest((1, 2), "shared", 8, (), Sampling(), 0, "t#0")))
        while not stand.flying:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(Aborted) as end:
            await asking
        assert end.value.ids == ()

    asyncio.run(asyncio.wait_for(cancelled(), 5))


def test_vllm_is_told_which_group_has_the_fewest_turns_left(base: Path) -> None:
    stand = Stand()
    engine = loaded(stand, base)
    asyncio.run(engine.generate(GenerateRequest((1, 2), "shared", 8, (), Sampling(), 0, "t#0", urgency=7)))
    assert stand.of("ask")[-1][3] == 7
    assert stand.of("start")[0][0]["scheduling_policy"] == "priority"


def test_a_batch_has_room_for_the_adapters_of_all_versions_that_are_played_at_once(base: Path, adapters: dict[str, Path]) -> None:
    given = arguments(CONF, placed(base, adapters), 8, 2, 128, "bfloat16", versions=2)
    assert (given["max_loras"], given["max_cpu_loras"]) == (4, 6)
    given = arguments(CONF.model_copy(update={"staleness": 0}), placed(base, adapters), 8, 2, 128, "bfloat16", versions=3)
    assert (given["max_loras"], given["max_cpu_loras"]) == (6, 6)


def test_slots_of_one_adapter_share_it(base: Path, adapters: dict[str, Path]) -> None:
    stand = Stand()
    loaded(stand, base, {"planner": adapters["planner"], "frozen": adapters["planner"]})
    assert len(stand.of("add")) == 1


def test_the_base_gets_an_adapter_that_says_nothing_where_it_is_not_told_apart(base: Path, adapters: dict[str, Path]) -> None:
    stand = Stand(known=False)
    engine = loaded(stand, base, {**adapters, "frozen": None})
    ask(engine, "frozen")
    assert stand.of("ask")[-1][2] == "run/1.0:frozen#3"
    assert stand.of("start")[0][0]["max_loras"] == 3
    stand = Stand(known=True)
    ask(loaded(stand, base, {**adapters, "frozen": None}), "frozen")
    assert stand.of("ask")[-1][2] is None


def test_a_silent_adapter_changes_nothing(adapters: dict[str, Path], tmp_path: Path) -> None:
    weights = load_file(silence(adapters["planner"], tmp_path / "silent") / WEIGHTS)
    assert weights
    assert all(not tensor.any() for name, tensor in weights.items() if "lora_B" in name)
    assert check_adapter(tmp_path / "silent", "frozen") == 4


def test_a_new_base_takes_the_place_of_the_old_one_or_the_engine_starts_anew(base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tiny_model(1).save_pretrained(other)
    stand = Stand()
    engine = loaded(stand, base)
    engine.load(placed(base, {"shared": None}, "run/1.1"))
    assert not stand.of("swap")
    engine.load(replace(placed(other, {"shared": None}, "run/1.2"), tokenizer=base))
    assert stand.of("swap") == [(other,)]
    stand.swappable = False
    engine.load(placed(base, {"shared": None}, "run/1.3"))
    assert [call[0] for call in stand.calls if call[0] in ("start", "swap", "shutdown")] == ["start", "swap", "shutdown", "start"]


def test_a_base_is_not_swapped_under_requests_in_flight(base: Path, tmp_path: Path) -> None:
    tiny_model(1).save_pretrained(tmp_path / "other")
    stand = Stand(idle=False)
    engine = loaded(stand, base)
    with pytest.raises(EngineError, match="in flight"):
        engine.load(placed(tmp_path / "other", {"shared": None}))
    with pytest.raises(EngineError, match="no version whose weights are verified"):
        ask(engine)


@pytest.mark.parametrize(("canary", "reason"), [(Canary((5, 6, 7), (-1.0, -1.1)), "differ by 1.0e-01"), (None, "no canary of slot shared")])
def test_what_cannot_be_verified_is_not_played(base: Path, canary: Canary | None, reason: str) -> None:
    engine = loaded(Stand(), base)
    with pytest.raises(CanaryError, match=reason):
        engine.load(Placed("run/1.1", base, base, {"shared": None}, {"shared": canary} if canary else {}))
    with pytest.raises(EngineError, match="no version whose weights are verified"):
        ask(engine)
    engine.load(placed(base, {"shared": None}, "run/1.2"))
    assert ask(engine).ids == (11, 12, 13)


def test_what_it_samples_is_held_to_what_its_weights_compute(base: Path) -> None:
    with pytest.raises(CanaryError, match="log-probs of what it samples differ"):
        loaded(Stand(logprob=-1.5), base)


def test_nothing_is_kept_of_a_reply_after_its_stop() -> None:
    ids = RENDERER.encode("the mentor of Bak Bam is Kel Dax and more")
    text = RENDERER.decode(ids)
    assert cut(ids, ["Bak"], frozenset(), RENDERER.decode)[1] == text[: text.index("Bak") + 3]
    assert cut(ids, ["none"], frozenset(), RENDERER.decode) == (len(ids), text, False)
    assert cut(ids, [], frozenset({ids[2]}), RENDERER.decode) == (3, RENDERER.decode(ids[:3]), True)
    assert cut((), ["a"], frozenset({1}), RENDERER.decode) == (0, "", False)


def test_the_end_of_a_turn_stays_with_its_log_prob(base: Path) -> None:
    stand = Stand()
    engine = loaded(stand, base)
    stand.reply = (11, TOKENIZER.eos_token_id, 12)
    completion = ask(engine)
    assert (completion.ids, completion.logprobs, completion.finish) == (stand.reply[:2], (-1.0, -1.0), "stop")
    assert completion.text == RENDERER.decode(stand.reply[:2])
    assert engine.generated == 3


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf")])
def test_a_log_prob_that_is_none_is_an_error(base: Path, logprob: float) -> None:
    stand = Stand()
    engine = loaded(stand, base)
    stand.logprob = logprob
    with pytest.raises(SamplingError, match=r"slot 'shared', version run/1\.0"):
        ask(engine)


def test_one_request_that_fails_is_not_the_engine_s_failure(base: Path) -> None:
    stand = Stand()
    engine = loaded(stand, base)
    stand.fault = ValueError("the prompt is too long")
    with pytest.raises(ExternalError, match=r"t#0: ValueError: the prompt is too long"):
        ask(engine)
    assert engine.failure is None
    stand.fault = Dead()
    with pytest.raises(EngineError, match="has ended"):
        ask(engine)
    assert isinstance(engine.failure, EngineError)
    assert asyncio.run(engine.failed()) is engine.failure


def test_an_engine_core_that_ends_between_requests_is_noticed(base: Path) -> None:
    stand = Stand()
    engine = loaded(stand, base)
    stand.errored = True
    with pytest.raises(EngineError, match="has ended"):
        ask(engine)


def test_an_adapter_that_vllm_does_not_take_is_named(base: Path, adapters: dict[str, Path]) -> None:
    stand = Stand()
    engine = loaded(stand, base, adapters)
    stand.fault = RuntimeError("no such module")
    with pytest.raises(EngineError, match=r"did not take the adapter in .*planner: no such module"):
        engine.load(placed(base, adapters, "run/1.1"))


FAULTS: list[dict[str, Any]] = [
    {"modules_to_save": ["lm_head"]}, {"use_dora": True}, {"lora_bias": True}, {"rank_pattern": {"q_proj": 8}}, {"alpha_pattern": {"q_proj": 8}},
    {"bias": "all"}, {"init_lora_weights": "pissa"},
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: next(iter(fault)))
def test_an_adapter_that_would_be_played_as_another_one_is_refused(adapters: dict[str, Path], fault: dict[str, Any]) -> None:
    file = adapters["planner"] / CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), **fault}))
    with pytest.raises(InputError, match=f"slot planner: vLLM cannot play the adapter .* for its {next(iter(fault))}"):
        room_for(adapters, CONF)


def test_an_adapter_of_embeddings_or_a_head_is_refused(adapters: dict[str, Path]) -> None:
    file = adapters["planner"] / WEIGHTS
    weights = load_file(file)
    save_file({**weights, "base_model.model.lm_head.lora_A.weight": next(iter(weights.values())).clone()}, file)
    with pytest.raises(InputError, match="for its lm_head, an embedding or a head"):
        room_for(adapters, CONF)


def test_room_is_made_for_the_ranks_and_slots_that_there_are(base: Path, adapters: dict[str, Path]) -> None:
    assert room_for(adapters, CONF) == (8, 2)
    assert room_for(adapters, CONF.model_copy(update={"max_lora_rank": 20, "max_loras": 4})) == (32, 4)
    with pytest.raises(InputError, match=r"slot answerer: its adapter has rank 4, .* rank 2; raise engine.max_lora_rank"):
        room_for(adapters, CONF.model_copy(update={"max_lora_rank": 2}))
    with pytest.raises(InputError, match=r"2 slots have adapters \(answerer, planner\), and the engine has room for 1"):
        room_for(adapters, CONF.model_copy(update={"max_loras": 1}))
    engine = loaded(Stand(), base, {"planner": adapters["planner"]})
    with pytest.raises(InputError, match="2 slots have adapters"):
        engine.load(placed(base, adapters, "run/1.1"))


def test_an_engine_that_is_closed_plays_nothing_and_gives_its_core_back(base: Path) -> None:
    stand = Stand()
    engine = loaded(stand, base)
    engine.close()
    assert stand.calls[-1] == ("shutdown",)
    with pytest.raises(EngineError, match="no version"):
        ask(engine)


def test_adapters_in_float32_are_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check_precision("float32")  # a CPU plays them
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_precision("bfloat16")
    with pytest.raises(InputError, match="to bfloat16"):
        check_precision("float32")


@pytest.mark.parametrize(("staleness", "kept", "versions"), [(0, 0, 1), (1, 1, 2)])
def test_a_run_one_step_off_keeps_the_adapters_of_the_version_before_whatever_its_engine_says(
    staleness: int, kept: int, versions: int
) -> None:
    config = make_config(
        {"method": {"name": "decor"}, "engine": {"name": "vllm", "staleness": 0}, "model": {"lora": {"rank": 4}}, "stages": {"rl": {"staleness": staleness}}},
        "here",
    )  # fmt: skip
    engine = disk_engine(config, RENDERER)
    assert isinstance(engine, VllmEngine)
    assert (engine._config.staleness, engine._versions) == (kept, versions)
