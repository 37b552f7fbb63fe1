"""M-ASK's rewards (3.3, eq. 2-3) and its three ways of credit.

Everything is read from roles, turns and rewards: states do not travel to where credit is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rolecast.methods.mask.replies import read_answer, read_plan
from rolecast.rewards.text import exact_match, token_f1, yes_or_no
from rolecast.types import Action, Reward, Thread, Trajectory, Unit

Credit = Literal["per_response", "across_steps", "faithful_eq5"]
Earned = Callable[["Move"], float | None]
ROLES = ("planning", "search", "summary", "update", "answer")  # in the order in which they speak in a turn
SOLVERS = ("planning", "answer")  # rewarded for an answer; the others for what they gain together
OBJECTIVE = "mask"
FAULT = -1.0


@dataclass(frozen=True, slots=True)
class Move:
    """What a role said in a turn. Planning's turn is 0, that of `<end>` one more than there were searches."""

    turn: int
    role: str
    action: Action


def turn_key(turn: int) -> str:
    return f"t={turn}"


def moves(t: Trajectory) -> list[Move]:
    """By turns; the answer to a turn's state is that turn's, also where a probe gave it."""
    found = [Move(_turn(thread), thread.role, action) for thread in t.threads for action in thread.actions]
    return sorted(found, key=lambda move: (move.turn, ROLES.index(move.role)))


def _turn(thread: Thread) -> int:
    return int(thread.key.removeprefix("t="))


def worth(answer: str | None, golds: Sequence[str]) -> float:
    """F1, and exact match where the question asks for yes or no."""
    return exact_match(answer, golds) if yes_or_no(golds) else token_f1(answer, golds)


def rewards(t: Trajectory) -> list[Reward]:
    """`f1` on what planning and answer said (eq. 2); `gain`, F1(a_t) − F1(a_{t−1}), on what the other roles said in turn t (eq. 3), 0
    on `<end>`; `format`, −1 on top of it, on replies of an illegal form. Without planning's answer F1(a₀) is 0.

    A turn whose answer nobody gave has no `gain`: outside of training only the last one is asked for.
    """
    golds = t.question.gold.answers
    played = moves(t)
    last = max((move.turn for move in played if move.role == "answer"), default=0)
    own = {move.action.id: worth(_answer_of(move), golds) for move in played if move.role in SOLVERS}
    after = {move.turn: own[move.action.id] for move in played if move.role == "answer" and move.turn}
    after[0] = next((own[move.action.id] for move in played if move.role == "planning"), 0.0)
    found = []
    for move in played:
        id, turn = move.action.id, move.turn
        if move.role in SOLVERS:
            found.append(Reward("f1", id, own[id], "text"))
        elif turn > last:
            found.append(Reward("gain", id, 0.0, "text", "ends"))
        elif turn in after and turn - 1 in after:
            found.append(Reward("gain", id, after[turn] - after[turn - 1], "text"))
        if not move.action.valid:
            found.append(Reward("format", id, FAULT, "protocol"))
    return found


def _answer_of(move: Move) -> str:
    text = move.action.text
    return read_plan(text).content.answer if move.role == "planning" else read_answer(text).content


def units(t: Trajectory, credit: Credit, final: bool) -> list[Unit]:
    """One unit for each reply, with what it earned and what a fault costs. `final`: all earn the last answer's F1 instead."""
    played = moves(t)
    named = {(reward.name, reward.on): reward.value for reward in t.rewards}
    ends = [move.action.id for move in played if move.role == "answer"]
    outcome = named.get(("f1", ends[-1])) if ends else None

    def earned(move: Move) -> float | None:
        reward = outcome if final else named.get(("f1" if move.role in SOLVERS else "gain", move.action.id))
        return None if reward is None else reward + _penalty(move)

    if credit == "across_steps":
        return _across_steps(t, played, earned, named)
    if credit == "faithful_eq5":
        scored = [(move, reward) for move in played if (reward := earned(move)) is not None]
        return [_unit(t, move, reward, t.id, order) for order, (move, reward) in enumerate(scored)]
    return _alone(t, played, earned)


def _alone(t: Trajectory, played: Sequence[Move], earned: Earned) -> list[Unit]:
    """Each reply is a return of its own."""
    return [_unit(t, move, reward, move.action.id) for move in played if (reward := earned(move)) is not None]


def _across_steps(t: Trajectory, played: Sequence[Move], earned: Earned, named: dict[tuple[str, str], float | None]) -> list[Unit]:
    """Search, summary and update form one return along the episode, to which every turn adds its gain once: from turn t on it is
    F1(a_T) − F1(a_{t−1}). Planning and answer stand alone. So does a reply of an illegal form, with that return and its penalty, for
    which no earlier reply is to blame; the gain of its turn is the last good reply's before.
    """
    loop = [move for move in played if move.role not in SOLVERS]
    gains = {move.turn: named.get(("gain", move.action.id)) for move in loop}
    if any(gain is None for gain in gains.values()):  # of an episode that was not played for training
        return []
    chain: list[tuple[Move, float]] = []
    alone: list[Unit] = _alone(t, [move for move in played if move.role in SOLVERS], earned)
    for turn, gain in gains.items():
        for move in (move for move in loop if move.turn == turn):
            if move.action.valid:
                chain.append((move, 0.0))
            else:
                ahead = sum(later or 0.0 for number, later in gains.items() if number >= turn)
                alone.append(_unit(t, move, ahead + FAULT, move.action.id))
        if chain:
            chain[-1] = (chain[-1][0], chain[-1][1] + (gain or 0.0))
    return [*alone, *(_unit(t, move, reward, f"{t.id}:loop", order) for order, (move, reward) in enumerate(chain))]


def _penalty(move: Move) -> float:
    return 0.0 if move.action.valid else FAULT


def _unit(t: Trajectory, move: Move, reward: float, chain: str, order: int = 0) -> Unit:
    """`baseline` is the reply's place among the question's rollouts: what may be exchanged where rewards are shuffled."""
    id, place = move.action.id, f"{t.group}:{move.role}:{move.turn}"
    return Unit(id, (id,), reward, OBJECTIVE, place, chain, order, move.role, t.group, t.id)
