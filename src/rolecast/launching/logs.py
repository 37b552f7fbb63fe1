"""Follows the logs of a job's pods. Logs are a courtesy: whatever goes wrong with them, the run goes on."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import datetime

from rolecast.launching.api_errors import Blip
from rolecast.launching.cluster import Cluster, Resource
from rolecast.launching.spec import Backoff
from rolecast.launching.status import phase

log = logging.getLogger(__name__)
RECONNECT = Backoff(base=0.5, limit=15.0)
CLOCK_SKEW_SECONDS = 60
STARTED = ("Running", "Succeeded", "Failed")


class PodLogs:
    """One thread per pod, since a log is a blocking stream. `say` gets whole lines, with the pod's name before them; `heard` gets them
    without it."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        say: Callable[[str], None],
        sleep: Callable[[float], None],
        heard: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._now = time.time
        self._cluster, self._namespace, self._say, self._sleep, self._heard = cluster, namespace, say, sleep, heard
        self._threads: dict[str, threading.Thread] = {}
        self._ended: set[str] = set()
        self._over, self._stop = threading.Event(), threading.Event()

    def follow(self, pods: list[Resource]) -> None:
        """Starts to follow pods that have started, and takes note of those that ended."""
        for pod in pods:
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            if phase(pod) in ("Succeeded", "Failed"):
                self._ended.add(uid)
            if phase(pod) in STARTED and uid not in self._threads:
                self._threads[uid] = threading.Thread(target=self._follow, args=(uid, name), name=f"logs of {name}", daemon=True)
                self._threads[uid].start()

    def close(self, seconds: float = 5.0) -> None:
        """The job is over: reads what logs hold, waiting at most `seconds` for all pods together."""
        self._over.set()
        for thread in self._threads.values():
            thread.join(seconds / len(self._threads))
        self._stop.set()

    def _follow(self, uid: str, name: str) -> None:
        position, failures = _Position(), 0
        while not self._stop.is_set():
            complete, sure = False, not failures
            position.reconnect()
            try:
                if failures and self._replaced(uid, name):
                    return
                for line in self._cluster.log_lines(self._namespace, name, since=position.age(self._now())):
                    if self._stop.is_set():
                        return
                    if not sure and self._replaced(uid, name):  # between the look above and the log's opening
                        return
                    sure = True
                    if (text := position.new(line)) is not None:
                        self._say(f"{name} | {text}")
                        self._heard(text)
                    failures = 0
                complete = uid in self._ended or self._over.is_set()
            except Blip:
                pass
            except Exception as error:  # a log must never end a run
                log.warning("the log of %s cannot be read: %s", name, error)
            if complete or (self._over.is_set() and failures >= 2):
                return
            self._sleep(RECONNECT.delay(failures))
            failures += 1  # a stream that ended is opened again only after a look at whose it would be

    def _replaced(self, uid: str, name: str) -> bool:
        """Whether the pod is gone, or another one has its name, whose own follower reads its log."""
        return self._cluster.pod_uid(self._namespace, name) != uid


class _Position:
    """Where a log was cut off: lines are told apart by their timestamps, and by their number within one timestamp."""

    def __init__(self) -> None:
        self._stamp, self._count, self._again = "", 0, 0

    def reconnect(self) -> None:
        self._again = 0

    def age(self, now: float) -> int | None:
        """Seconds that reach back before the last line, with a margin for clocks that differ; None at the beginning."""
        if not self._stamp:
            return None
        return max(1, math.ceil(now - datetime.fromisoformat(self._stamp).timestamp())) + CLOCK_SKEW_SECONDS

    def new(self, line: str) -> str | None:
        """The line without its timestamp, or None if it was seen before the last reconnect."""
        stamp, _, text = line.partition(" ")
        if stamp < self._stamp:
            return None
        if stamp == self._stamp:
            self._again += 1
            if self._again <= self._count:
                return None
        else:
            self._stamp, self._again, self._count = stamp, 1, 0
        self._count = self._again
        return text
