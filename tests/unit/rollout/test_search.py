"""Whom a worker goes to, whom it stays with, and whom it leaves alone for a while."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from rolecast.errors import InputError, RolecastError, StoreError
from rolecast.leasing import Refused
from rolecast.rollout.complaints import FIRST, Complaints
from rolecast.rollout.search import AWAY, REFUSES, Search
from rolecast.store.announcements import Opening
from rolecast.wire.coordinator import Load

A = Opening("s3://b/a", "rl", 1, "http://a", 1.0)
B = Opening("s3://b/b", "rl", 1, "http://b", 2.0)
C = Opening("s3://b/c", "rl", 1, "http://c", 3.0)


@dataclass
class Place:
    """What is announced, and what each address answers."""

    announced: list[Opening] = field(default_factory=list)
    answers: dict[str, Load | RolecastError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    now: float = 0.0

    def search(self) -> Search:
        return Search(self.read, lambda url: Client(self, url), lambda: self.now)

    def read(self) -> list[Opening]:
        return sorted(self.announced, key=lambda one: (one.attempt, one.opened), reverse=True)

    def stands(self, opening: Opening, workers: int, waiting: int = 1) -> None:
        self.answers[opening.url] = Load(workers=workers, waiting=waiting)
        if opening not in self.announced:
            self.announced.append(opening)

    def fails(self, opening: Opening, error: RolecastError) -> None:
        self.answers[opening.url] = error
        if opening not in self.announced:
            self.announced.append(opening)


@dataclass
class Client:
    place: Place
    url: str

    def load(self) -> Load:
        self.place.asked.append(self.url)
        answer = self.place.answers[self.url]
        if isinstance(answer, RolecastError):
            raise answer
        return answer

    def close(self) -> None:
        self.place.closed.append(self.url)


@pytest.fixture
def place() -> Place:
    return Place()


def test_the_fewest_workers_come_first_and_equal_ones_by_chance(place: Place) -> None:
    place.stands(A, 3)
    place.stands(B, 1)
    assert place.search().best() == B
    place.stands(A, 1)
    chosen = Counter(place.search().best() for _ in range(200))
    assert min(chosen[A], chosen[B]) > 50


def test_workers_that_come_one_by_one_are_spread_evenly(place: Place) -> None:
    count = {A: 0, B: 0, C: 0}
    for _ in range(9):
        for opening, workers in count.items():
            place.stands(opening, workers)
        chosen = place.search().best()
        assert chosen is not None
        count[chosen] += 1
    assert set(count.values()) == {3}


def test_nobody_open_is_nobody(place: Place) -> None:
    search = place.search()
    assert search.best() is None
    assert search.announced == []
    assert search.reasons == {}


@pytest.mark.parametrize(
    ("error", "first", "most"),
    [(RolecastError("does not answer"), *AWAY), (Refused("409: its package is 0.1"), *REFUSES), (InputError("no such method"), *REFUSES)],
)
def test_one_that_does_not_answer_or_refuses_is_passed_over_and_asked_again_ever_more_seldom(
    place: Place, error: RolecastError, first: float, most: float
) -> None:
    place.fails(A, error)
    place.stands(B, 5)
    search = place.search()
    waits, last = [], 0.0
    while place.now < 8 * most:
        assert search.best() == B
        if A.url in place.asked:
            waits.append(place.now - last)
            last = place.now
            place.asked.remove(A.url)
        place.now += 0.25
    assert waits[0] == 0
    assert first <= waits[1] <= 1.5 * first + 0.25
    assert most <= waits[-1] <= 1.5 * most + 0.25
    assert search.reasons == {A: error}


def test_a_new_attempt_is_asked_at_once_whatever_the_last_one_was(place: Place) -> None:
    place.fails(A, Refused("its prompts are others"))
    search = place.search()
    assert search.best() is None
    place.announced = []
    place.stands(replace(A, attempt=2, opened=9.0), 0)
    assert search.best() == replace(A, attempt=2, opened=9.0)
    assert search.reasons == {}


def test_one_that_gave_work_is_put_off_for_a_short_while_again(place: Place) -> None:
    place.stands(A, 0)
    search = place.search()
    for _ in range(6):
        search.put_off(A, RolecastError("away"))
    search.worked(A)
    search.put_off(A, RolecastError("away"))
    place.now += 1.5 * AWAY[0]
    assert search.best() == A


def test_of_a_run_only_the_newest_attempt_is_asked_that_answers(place: Place) -> None:
    """One that was cut off may answer until it notices."""
    later = replace(A, attempt=2, url="http://a2", opened=5.0)
    place.stands(A, 0)
    place.stands(later, 7)
    search = place.search()
    assert search.best() == later
    assert place.asked == [later.url]
    assert search.better(A, idle=False) == later
    place.fails(later, RolecastError("dead"))
    assert place.search().best() == A


def test_a_worker_stays_where_it_is_while_that_is_fair(place: Place) -> None:
    search = place.search()
    for mine, other, waiting, idle, moves in (
        (2, 1, 9, False, False),  # the move would only change who has more
        (3, 1, 9, False, True),
        (8, 0, 9, False, True),
        (8, 0, 0, False, False),  # it needs nobody
        (1, 0, 9, False, False),  # whoever came first keeps its only worker
        (1, 0, 9, True, True),  # unless it has no use for it
        (1, 5, 9, True, True),
        (8, 0, 0, True, False),
    ):
        place.stands(A, mine)
        place.stands(B, other, waiting)
        assert search.better(A, idle) == (B if moves else None), (mine, other, waiting, idle)


def test_nobody_is_left_whose_own_standing_is_unknown(place: Place) -> None:
    place.fails(A, RolecastError("no answer"))
    place.stands(B, 0)
    assert place.search().better(A, idle=True) is None


def test_whether_one_is_listed_is_unknown_without_the_store_and_then_it_is(place: Place) -> None:
    place.stands(A, 1)
    search = place.search()
    assert search.listed(A)
    assert not search.listed(replace(A, attempt=2))

    def away() -> list[Opening]:
        raise StoreError("away")

    search.read = away
    assert search.listed(replace(A, attempt=2))
    with pytest.raises(StoreError):
        search.best()
    assert search.announced is None


def test_clients_of_those_who_are_gone_are_closed(place: Place) -> None:
    place.stands(A, 1)
    search = place.search()
    search.best()
    place.announced = []
    search.best()
    assert place.closed == [A.url]


def test_a_reason_is_said_when_it_is_new_and_again_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    complaints = Complaints(logging.getLogger("waits"), lambda: now[0])
    with caplog.at_level(logging.INFO):
        for second in range(7 * int(FIRST) + 1):
            now[0] = float(second)
            complaints.say("away", logging.INFO, f"away, in words of its own {second}")
            if second == 10:
                complaints.say("refused", logging.ERROR, "refused")
        assert [record.message for record in caplog.records] == [
            "away, in words of its own 0", "refused", f"away, in words of its own {FIRST:.0f}", f"away, in words of its own {3 * FIRST:.0f}",
            f"away, in words of its own {7 * FIRST:.0f}",
        ]  # fmt: skip
        complaints.forget()
        complaints.say("away", logging.INFO, "away anew")
        assert caplog.records[-1].message == "away anew"
