"""What an answer took: a probe that only an evaluation adds is no part of it."""

from __future__ import annotations

from rolecast.evaluation.metrics import summarize
from rolecast.types import Action, Gold, Question, Thread, Trajectory


def test_tokens_of_probes_do_not_count() -> None:
    t = Trajectory("t", Question("q", "Who?", Gold(("x",))), "g", 0, "m", 0, answer="x")
    for name, probe, count in (("own", False, 3), ("probed", True, 5)):
        action = Action(f"t/{name}#0", (1,) * count, (0.0,) * count, "v", "", "stop")
        t.threads.append(Thread(f"t/{name}", "teller", "shared", probe=probe, turns=[action]))
    assert summarize([t], 0, 100)["tokens_per_question"] == 3
