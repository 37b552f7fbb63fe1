"""What a method acts in: names and draws that depend on no order, branches, probes, retrieval, and contexts that are full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import pytest
from parallel import ROLE, Late, Repeats, State, env_of, prompt, say

from rolecast.errors import EngineError
from rolecast.ports import GenerateRequest, Sampling
from rolecast.rollout.clock import Clock
from rolecast.rollout.env import Env, EpisodeEnd, Overflow
from rolecast.types import Observation, Passage, Thread, Trajectory
from rolecast.wire.coordinator import pack, unpack


def slow(*keys: str) -> Callable[[GenerateRequest], Awaitable[object]]:
    """Lets requests with one of these texts in their key through after the others, the first named last."""
    ranks = {key: len(keys) - i for i, key in enumerate(keys)}
    return lambda request: asyncio.sleep(0.01 * max((rank for key, rank in ranks.items() if key in request.key), default=0))


def seeds(engine: Repeats) -> dict[str, int]:
    return {request.key: request.seed for request in engine.requests}


# Names and draws


def test_a_thread_is_named_by_the_path_of_what_opened_it() -> None:
    async def play(env: Env) -> None:
        planner = env.open(ROLE, prompt())
        await planner.act(str)
        await planner.act(str)
        await say(env, "again")
        await env.gather({"n3": lambda part: say(part, "x", key="sample=1", parent=planner.thread)})
        await env.gather({"n3": lambda part: say(part, "x", parent=planner.thread)})
        await say(env.probe(), "x", key="t=2")

    engine = Repeats()
    env = env_of(engine)
    asyncio.run(play(env))
    assert [(thread.id, thread.key, thread.parent) for thread in env.trajectory.threads] == [
        ("g.0/speaker.0", "0", None),
        ("g.0/speaker.1", "1", None),
        ("g.0/speaker.0/n3/speaker.sample=1", "sample=1", "g.0/speaker.0"),
        ("g.0/speaker.0/n3/speaker.1", "1", "g.0/speaker.0"),
        ("g.0/probe/speaker.t=2", "t=2", None),
    ]
    assert [action.id for action in env.trajectory.threads[0].actions] == ["g.0/speaker.0#0", "g.0/speaker.0#1"]
    assert [request.key for request in engine.requests] == [action.id for action in env.trajectory.actions]
    assert len(set(seeds(engine).values())) == 6


def test_the_key_and_the_fault_travel_over_the_wire() -> None:
    env = env_of(Repeats())
    asyncio.run(say(env.probe(), "x", key="t=2"))
    env.trajectory.status, env.trajectory.fault = "error", "OSError: no"
    [back] = unpack(pack([env.trajectory]))
    assert (back.threads, back.fault, back.states) == (env.trajectory.threads, "OSError: no", {})


def test_seconds_of_roles_and_branches_are_the_episodes_and_those_of_probes_are_nobodys() -> None:
    async def play(env: Env) -> None:
        await say(env, "x")
        await env.gather({"n1": lambda part: say(part, "x"), "n2": lambda part: say(part, "x")})
        await say(env.probe(), "x")

    env = env_of(Repeats())
    env.clock = Clock(count().__next__)  # a second between any two looks at it
    asyncio.run(play(env))
    assert set(env.clock.seconds) == {"speaker"}
    alone = env_of(Repeats())
    alone.clock = Clock(count().__next__)
    asyncio.run(say(alone, "x"))
    assert alone.clock.seconds["speaker"] == 1.0
    assert env.clock.seconds["speaker"] >= 3.0
    asyncio.run(say(alone.probe(), "x"))
    assert alone.clock.seconds["speaker"] == 1.0


def test_two_threads_of_one_name_are_an_error_that_names_it() -> None:
    env = env_of(Repeats())
    env.open(ROLE, prompt(), key="n1")
    env.open(ROLE, prompt(), key="n1", parent=Thread("other", "speaker", "shared"))
    with pytest.raises(ValueError, match=r"there is a thread g.0/speaker.n1 already; give each thread of role speaker a key"):
        env.open(ROLE, prompt(), key="n1")


def test_draws_depend_on_the_name_and_not_on_when_a_thread_was_opened() -> None:
    async def play(env: Env, keys: str) -> None:
        for key in keys:
            await say(env, "x", key=key)

    ab, ba, other = Repeats(), Repeats(), Repeats()
    asyncio.run(play(env_of(ab), "ab"))
    asyncio.run(play(env_of(ba), "ba"))
    asyncio.run(play(env_of(other, seed=8), "ab"))
    assert seeds(ab) == seeds(ba)
    assert not set(seeds(ab).values()) & set(seeds(other).values())


def test_each_action_keeps_the_state_that_its_thread_was_in() -> None:
    async def play(env: Env) -> None:
        left, right = (env.open(ROLE, prompt(), state=State(side), key=side) for side in ("left", "right"))
        for live in (left, right, left):
            await live.act(str)
            live.state.notes.append("after")
        right.state = State("another")
        await right.act(str)

    env = env_of(Repeats())
    asyncio.run(play(env))
    states = {id.removeprefix("g.0/speaker."): (state.text, len(state.notes)) for id, state in env.trajectory.states.items()}
    assert states == {"left#0": ("left", 0), "right#0": ("right", 0), "left#1": ("left", 1), "right#1": ("another", 0)}


def test_a_state_is_that_of_the_moment_of_asking() -> None:
    async def play(env: Env) -> None:
        state = State("x")
        turn = asyncio.ensure_future(say(env, "x", state=state))
        await asyncio.sleep(0)
        state.notes.append("while the engine was busy")
        await turn

    env = env_of(Repeats())
    asyncio.run(play(env))
    assert env.trajectory.states["g.0/speaker.0#0"].notes == []


# Branches


async def three(env: Env) -> list[str]:
    async def branch(part: Env, name: str) -> str:
        [passage] = await part.search(name, 1)
        await say(part, passage.text)
        await say(part, "more")
        return name

    return await env.gather({name: lambda part, name=name: branch(part, name) for name in ("a", "b", "c")})


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")])
def test_results_and_records_are_in_the_order_of_the_branches(order: tuple[str, ...]) -> None:
    engine = Repeats(gate=slow(*(f"/{name}/" for name in order)))
    env = env_of(engine)
    assert asyncio.run(three(env)) == ["a", "b", "c"]
    assert [request.key for request in engine.requests] != sorted(request.key for request in engine.requests)  # they were at once
    assert [thread.id for thread in env.trajectory.threads] == [f"g.0/{name}/speaker.{n}" for name in "abc" for n in (0, 1)]
    assert env.trajectory.retrieved == ["p of a", "p of b", "p of c"]
    assert (env.trajectory.searches, env.trajectory.queries) == (3, ["a", "b", "c"])
    assert engine.branches == 1


def test_the_first_exception_in_order_is_raised_when_all_are_done() -> None:
    async def fail(part: Env, error: Exception) -> None:
        await say(part, "x")
        raise error

    async def play(env: Env) -> None:
        await env.gather(
            {
                "a": lambda part: say(part, "x"),
                "b": lambda part: fail(part, EpisodeEnd("format")),
                "c": lambda part: fail(part, ValueError("earlier, but later in order")),
            }
        )

    env = env_of(Repeats(gate=slow("/a/", "/b/")))
    with pytest.raises(EpisodeEnd, match="format"):
        asyncio.run(play(env))
    assert [thread.id for thread in env.trajectory.threads if thread.actions] == [f"g.0/{name}/speaker.0" for name in "abc"]
    assert env.engine.branches == 1


def test_branches_are_counted_while_they_may_ask_and_the_parent_when_it_may() -> None:
    counts: list[int] = []

    async def branch(part: Env, turns: int) -> None:
        for _ in range(turns):
            await say(part, "x")
            counts.append(part.engine.branches)

    async def play(env: Env) -> None:
        await env.gather({str(turns): lambda part, turns=turns: branch(part, turns) for turns in (1, 2, 4)})
        await env.gather({})
        counts.append(env.engine.branches)

    asyncio.run(play(env_of(Repeats())))
    assert counts[:3] == [3, 3, 3]
    assert counts[-3:] == [1, 1, 1]
    assert sorted(counts, reverse=True) == counts


def test_branches_that_are_cancelled_are_counted_off() -> None:
    async def play(env: Env) -> None:
        async def forever(part: Env) -> None:
            await asyncio.sleep(100)

        task = asyncio.ensure_future(env.gather({"a": forever, "b": forever}))
        await asyncio.sleep(0)
        assert env.engine.branches == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    env = env_of(Repeats())
    asyncio.run(play(env))
    assert env.engine.branches == 1


def test_the_env_of_an_episode_is_not_acted_in_while_its_branches_play() -> None:
    async def play(env: Env, act: Callable[[Env], object]) -> None:
        async def wrong(part: Env) -> None:
            found = act(env)
            if asyncio.iscoroutine(found):
                await found

        await env.gather({"a": wrong})

    for act in (
        lambda env: env.open(ROLE, prompt()),
        lambda env: env.search("q", 1),
        lambda env: env.fetch(["p"]),
        lambda env: env.gather({}),
    ):
        with pytest.raises(RuntimeError, match=r"the env of g.0 waits for its branches"):
            asyncio.run(play(env_of(Repeats()), act))


# Probes


def test_a_probe_has_seeds_and_sampling_of_its_own_and_leaves_no_trace_in_the_rollout() -> None:
    async def play(env: Env, probing: bool) -> None:
        await say(env, "x")
        if probing:
            greedy = env.probe(sampling=Sampling(0.0))
            await greedy.search("for the probe", 1)
            await say(greedy, "x")
            await say(greedy.probe(), "x", sampling=Sampling(0.5))
        await say(env, "x")

    plain, probed = Repeats(), Repeats()
    without, env = env_of(plain), env_of(probed)
    asyncio.run(play(without, False))
    asyncio.run(play(env, True))
    t = env.trajectory
    assert (t.threads_of("speaker"), t.searches, t.queries, t.retrieved) == (without.trajectory.threads, 0, [], [])
    assert [thread.id for thread in t.threads_of("speaker", probe=True)] == ["g.0/probe/speaker.0", "g.0/probe/speaker.1"]
    assert seeds(plain).items() < seeds(probed).items()
    assert len(set(seeds(probed).values())) == 4
    assert [request.sampling.temperature for request in probed.requests] == [1.0, 0.0, 0.5, 1.0]


# Retrieval


def test_many_queries_are_one_call_and_all_are_recorded_in_their_order() -> None:
    async def play(env: Env) -> None:
        assert await env.search_all([], 3) == []
        assert [found.id for [found] in await env.search_all(["b", "a", "b"], 3)] == ["p of b", "p of a", "p of b"]
        assert [found.text for found in await env.fetch(["p7", "p1"])] == ["all of p7", "all of p1"]
        assert await env.fetch([]) == []

    retriever = Late(longest=0)
    env = env_of(Repeats(), retriever)
    asyncio.run(play(env))
    assert retriever.calls == [["b", "a", "b"]]
    assert (env.trajectory.searches, env.trajectory.queries) == (3, ["b", "a", "b"])
    assert env.trajectory.retrieved == ["p of b", "p of a", "p of b", "p7", "p1"]


# Contexts that are full

LONG = " yes" * 6  # as many tokens as the role may say


def prompt_tokens(text: str = "x") -> int:
    return len(env_of(Repeats()).renderer.prompt(prompt(text))[0])


@pytest.mark.parametrize(("room", "finish", "cut"), [(6, "length", False), (5, "length", True), (5, "stop", False), (1, "length", True)])
def test_a_reply_that_was_cut_for_lack_of_room_is_no_fault_of_the_role(room: int, finish: str, cut: bool) -> None:
    env = env_of(Repeats(reply=lambda request: LONG, finish=finish), max_context=prompt_tokens() + room)
    if cut:
        with pytest.raises(Overflow, match=f"thread g.0/speaker.0: the context of .* cut a reply after {room} tokens") as raised:
            asyncio.run(say(env, "x"))
        assert raised.value.status == "length"
    else:
        asyncio.run(say(env, "x"))
    [action] = env.trajectory.actions
    assert len(action.ids) == room
    assert action.id in env.trajectory.states


def test_without_room_nothing_is_asked() -> None:
    engine = Repeats()
    env = env_of(engine, max_context=prompt_tokens())
    with pytest.raises(Overflow, match="has no room for a reply"):
        asyncio.run(say(env, "x"))
    assert engine.requests == []
    assert isinstance(env.trajectory.threads[0].turns[-1], Observation)


@pytest.mark.parametrize("room", [9, 6, 3, 0])
def test_a_context_that_forgets_loses_its_beginning_and_the_role_speaks_its_fill(room: int) -> None:
    """Six tokens are what the role may say; what is recorded is whole."""
    engine = Repeats(reply=lambda request: LONG, finish="length")
    text = "far too long " * 9
    env = env_of(engine, max_context=prompt_tokens(text) + room)
    env.forgets = True
    asyncio.run(say(env, text))
    [request] = engine.requests
    [thread] = env.trajectory.threads
    first = thread.turns[0].ids
    assert request.ids == first[max(0, 6 - room) :]
    assert (request.max_tokens, len(thread.actions[0].ids), env.trajectory.status) == (6, 6, "ok")


def test_a_branch_may_do_without_a_role_that_has_no_room() -> None:
    async def branch(part: Env, text: str) -> str | None:
        try:
            return (await say(part, text))[1]
        except Overflow:
            return None

    async def play(env: Env) -> list[str | None]:
        return await env.gather({"a": lambda part: branch(part, "far too long " * 9), "b": lambda part: branch(part, "x")})

    env = env_of(Repeats(), max_context=prompt_tokens() + 6)
    assert asyncio.run(play(env)) == [None, " yes</answer>"]
    assert env.trajectory.status == "ok"


# The engine


def test_what_the_engine_raises_is_an_engine_error_with_the_turn() -> None:
    async def broken(request: GenerateRequest) -> None:
        raise KeyError("no weights for slot 'speaker'")

    with pytest.raises(EngineError, match=r"the engine did not answer g.0/speaker.0#0: KeyError: .*no weights"):
        asyncio.run(say(env_of(Repeats(gate=broken)), "x"))


def test_an_action_names_the_version_that_sampled_it() -> None:
    async def play(env: Env) -> None:
        await say(env, "x")
        env.engine.version = "v/0.1"
        await say(env, "x")

    env = env_of(Repeats())
    asyncio.run(play(env))
    assert [action.version for action in env.trajectory.actions] == ["v/0.0", "v/0.1"]


# Looking on


class Notes:
    """A watcher that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def grew(self, thread: Thread) -> None:
        self.told.append((thread.id, len(thread.turns)))

    def searches(self, queries: Sequence[str]) -> None:
        self.told.append(("searches", tuple(queries)))

    def found(self, passages: Sequence[Passage]) -> None:
        self.told.append(("found", tuple(passage.id for passage in passages)))


def test_who_looks_on_sees_every_turn_and_search_as_it_happens_and_changes_nothing() -> None:
    async def play(env: Env) -> None:
        live = env.open(ROLE, prompt())
        await live.act(str)
        live.observe("documents")
        await env.search_all(["x"], 1)
        await env.search_all([], 1)
        await env.gather({"n": lambda part: say(part, "x")})

    def played(watcher: Notes | None) -> Trajectory:
        env = env_of(Repeats())
        env.watcher = watcher
        asyncio.run(play(env))
        return env.trajectory

    notes = Notes()
    seen = played(notes)
    assert notes.told == [
        ("g.0/speaker.0", 1), ("g.0/speaker.0", 2), ("g.0/speaker.0", 3), ("searches", ("x",)), ("found", tuple(seen.retrieved)),
        ("g.0/n/speaker.0", 1), ("g.0/n/speaker.0", 2),
    ]  # fmt: skip
    assert pack([seen]) == pack([played(None)])
