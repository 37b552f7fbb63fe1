"""How far a job is and when it will be done, from the progress lines in its log."""

from __future__ import annotations

from collections.abc import Callable

from rolecast.stages.progress import Seen, read_progress

EVERY_SECONDS = 60.0


class Pace:
    """`read` gets every line of the job's log, from any thread; `tell` says now and then how far the job is. The rate is what was seen
    here: a job that was adopted, or that went on from a checkpoint, did the steps before at another time."""

    def __init__(self, job: str, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._job, self._say, self._clock = job, say, clock
        self._first: tuple[float, Seen] | None = None
        self._last: tuple[float, Seen] | None = None
        self._told: tuple[float, Seen] | None = None
        self._told_at = float("-inf")

    def read(self, line: str) -> None:
        seen = read_progress(line)
        if seen is None:
            return
        now, first = self._clock(), self._first
        if first is None or (first[1].label, first[1].total) != (seen.label, seen.total) or seen.done < first[1].done:
            self._first = (now, seen)
        self._last = (now, seen)

    def tell(self) -> None:
        first, last, now = self._first, self._last, self._clock()
        if first is None or last is None or now - self._told_at < EVERY_SECONDS or last == self._told:
            return
        self._told_at, self._told = now, last
        seen, gained, spent = last[1], last[1].done - first[1].done, last[0] - first[0]
        left = f", about {_clock((seen.total - seen.done) * spent / gained)} left" if gained > 0 and spent > 0 else ""
        self._say(f"job {self._job}: {seen.label} {seen.done} of {seen.total} ({100 * seen.done // max(1, seen.total)} %){left}")


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min" if minutes else "a minute"
