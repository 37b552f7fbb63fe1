"""Open coordinators, announced in a store that learners and workers share: so one pool of workers serves run after run.

The first rank of a learner announces its coordinator once its door is open, and takes the announcement back at its end. What a killed
one left behind is swept away by the next attempt of its run; until then it costs workers an attempt to connect now and then.

An announcement is signed with the release's key. Workers go to no address that somebody else wrote, so nobody else is shown a token.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from pydantic import BaseModel, ConfigDict

from rolecast.errors import RolecastError
from rolecast.ports import Store

log = logging.getLogger(__name__)
COORDINATORS = "ROLECAST_COORDINATORS"  # the address of the store where they are announced
ADDRESS = "ROLECAST_COORDINATOR_URL"  # of one coordinator: what its learner announces, or the only one that a worker works for
PORT = "ROLECAST_COORDINATOR_PORT"  # where the coordinator listens
LET_THROUGH = (
    "ROLECAST_COORDINATOR_PORT_LET_THROUGH"  # which port policies of the cluster let through; jobs read it from PORT of their ConfigMap
)


@dataclass(frozen=True, slots=True)
class Opening:
    """A coordinator that was opened. `opened`: seconds since 1970 by its learner's clock, for who looks at it and where attempts are equal."""

    run: str  # its address, s3://bucket/prefix/NAME
    stage: str
    attempt: int
    url: str
    opened: float


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    opening: Opening
    proof: str


@dataclass(slots=True)
class Board:
    """The announcements under one prefix of a store, of whoever has the release's `key`. `foreign`: those of others, when last read."""

    store: Store
    key: str = field(repr=False)
    foreign: int = 0

    @contextmanager
    def announced(self, opening: Opening) -> Iterator[None]:
        """Announces a coordinator for as long as the context lasts. Earlier attempts of its run are over, and so are their announcements."""
        mine = _key_of(opening)
        for other in self.store.keys(_folder_of(opening.run)):
            if _attempt_in(other) < opening.attempt:
                self.store.delete(other)
        self.store.put(mine, _Record(opening=opening, proof=self._proof(opening)).model_dump_json().encode())
        log.info(
            "the coordinator of %s, stage %s, attempt %d, is announced at %s", opening.run, opening.stage, opening.attempt, opening.url
        )
        try:
            yield
        finally:
            try:
                self.store.delete(mine)
            except RolecastError as error:
                log.warning("the announcement %s is not taken back, workers will pass it over: %s", mine, error)

    def read(self) -> list[Opening]:
        """What is announced, of a run the last attempt first: an earlier one that was cut off may announce itself late. Raises `StoreError`
        where the store is away."""
        self.foreign, found = 0, []
        for key in self.store.keys(""):
            data = self.store.get(key)
            if data is None:  # taken back meanwhile
                continue
            opening = self._opening(data)
            if opening is None:
                self.foreign += 1
            else:
                found.append(opening)
        return sorted(found, key=lambda opening: (opening.attempt, opening.opened), reverse=True)

    def _opening(self, data: bytes) -> Opening | None:
        """None for what nobody with our key wrote."""
        try:
            record = _Record.model_validate_json(data)
            right = hmac.compare_digest(record.proof.encode(), self._proof(record.opening).encode())
        except ValueError:  # pydantic's is one, and so is that of text that is no Unicode
            return None
        return record.opening if right else None

    def _proof(self, opening: Opening) -> str:
        signed = json.dumps(["announcement", asdict(opening)], sort_keys=True)
        return hmac.new(self.key.encode(), signed.encode(), hashlib.sha256).hexdigest()


def _folder_of(run: str) -> str:
    """Of one run: its name for people, and a digest of its whole address, since two runs may have one name."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", run.rstrip("/").rsplit("/", 1)[-1])[:40].strip("-")
    return f"{name or 'run'}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def _key_of(opening: Opening) -> str:
    """A key for each attempt: what a slow one takes back at its end is never the next one's."""
    return f"{_folder_of(opening.run)}/{opening.attempt:06d}.{opening.stage}"


def _attempt_in(key: str) -> int:
    number = key.rsplit("/", 1)[-1].split(".")[0]
    return int(number) if number.isdigit() else 0
