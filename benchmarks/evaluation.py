"""What it takes to evaluate many answers: metrics, intervals by 10,000 resamples and the report, as seconds and peak memory.

    python benchmarks/evaluation.py [--n 100000] [--bootstrap 10000] [--stages rl]

Episodes are made up one at a time, as an evaluation plays them: two-hop questions of three types with gold chains, of which some are answered,
some in part, and some fail in every way that the report tells apart. `--stages sft,rl` evaluates two models, whose answers are then paired.
Exits with 1 where it takes more than 60 s or 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rolecast.config import RunConfig, make_config
from rolecast.evaluation.metrics import row_of, summarize_rows
from rolecast.evaluation.tasks import QA
from rolecast.evaluation.trace import trace
from rolecast.stages.evaluate import prediction
from rolecast.stages.report import report
from rolecast.stages.run import Run, create
from rolecast.store.artifact import writing
from rolecast.types import Action, Gold, Hop, Observation, Question, Thread, Trajectory

SECONDS, KIB = 60.0, 1 << 20
TYPES = ("bridge", "comparison", "inference")


def episodes(n: int, seed: int) -> Iterator[Trajectory]:
    rng = random.Random(seed)
    for number in range(n):
        town, river = f"Kalm {number % 977}", f"the {number % 1009} Oda river of the north"
        hops = (
            Hop(f"Vrek {number}", "born in", town, "", f"p{number}", f"birthplace of Vrek {number}"),
            Hop(town, "lies on", river, "", f"r{number}", f"river of {town}"),
        )
        gold = Gold((river, f"Oda {number % 1009}"), hops, (f"p{number}", f"r{number}"))
        question = Question(f"q{number}", f"On which river was Vrek {number} born?", gold, TYPES[number % 3], 2 + number % 3)
        found = [id for id in gold.passages if rng.random() < 0.8]
        answer = rng.choice([river, "Oda river", f"The Lum of {number}, as far as is known", "yes", None])
        read = f"Vrek {number} was born in {town}. It lies on {river}." if rng.random() < 0.8 else town
        said = Action(f"a{number}", (1,) * 30, (-0.1,) * 30, "v", f"<think>So it is.</think><answer>{answer}</answer>", "stop")
        yield Trajectory(
            f"t{number}", question, f"g{number}", 0, "decor", 0, answer=answer, status="ok" if answer else "format", searches=2,
            queries=[hops[0].query, hops[1].query if rng.random() < 0.7 else "rivers"], retrieved=[*found, "x", "y", "z"],
            threads=[Thread(f"t{number}/answerer.0", "answerer", "shared", turns=[Observation((1,) * 90, read), said])],
        )  # fmt: skip


def evaluated(run: Run, stage: str, n: int, seed: int, bootstrap: int) -> None:
    with writing(run.evaluation(stage), "evaluation", run.made) as partial:
        rows, traces = [], []
        with (partial / "predictions.jsonl").open("w") as file:
            for t in episodes(n, seed):
                scores = QA.scores(t)
                rows.append(row_of(t, QA, scores))
                file.write(json.dumps(prediction(t, QA, scores)) + "\n")
                if len(traces) < 600:
                    traces.append(trace(t, QA))
        result = summarize_rows(rows, 0, bootstrap, QA)
        (partial / "result.json").write_text(json.dumps(result))
        (partial / "traces.json").write_text(json.dumps(traces))
    print(f"{stage}: EM {result['em']:.3f} {result['ci95']}, F1 {result['f1']:.3f}, {result['faults']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--bootstrap", type=int, default=10_000)
    parser.add_argument("--stages", default="rl")
    given = parser.parse_args()
    config: RunConfig = make_config({"eval": {"bootstrap": given.bootstrap}}, "here")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        run = create(Path(folder) / "run", config)
        began = time.monotonic()
        for seed, stage in enumerate(given.stages.split(",")):
            evaluated(run, stage, given.n, seed, given.bootstrap)
        measured = time.monotonic() - began
        report(run)
        seconds = time.monotonic() - began
        pages = list((run.path / "wrong").iterdir())
        page = (run.path / "report.html").stat().st_size
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{given.n:,} answers a stage, {given.bootstrap:,} resamples: {seconds:.1f} s, of which metrics and intervals {measured:.1f} s")
    print(
        f"peak {kib / 1024:.0f} MiB, of which {before / 1024:.0f} before; report {page / 1e6:.1f} MB, {len(pages)} pages of wrong answers"
    )
    sys.exit(seconds > SECONDS or kib > KIB)


if __name__ == "__main__":
    main()
