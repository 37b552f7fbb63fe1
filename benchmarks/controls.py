"""Controls of a method's demo: what does its RL add, and does it learn what the rewards say?

    python benchmarks/controls.py [--method decor] [--preset NAME] [--seed 0] [--out runs/controls] [--only NAME] [--set KEY=VALUE …]

closed_book    the same model taught `direct` on as many rows: what can be answered without searching
one_search     the same for `naive_rag`: what one search with the question gives
rl             the demo itself, beside its model before RL (`sft`)
sft_continued  the demo's SFT, longer by the time that all of its later stages take: RL against more of the same teacher
rl_shuffled    the demo with `shuffle_rewards` in its RL stages: whole rollouts of a question exchange what they earned, each role and turn
               keeps its place, dev scores are what they are. The collapse guard is off, the best checkpoint on dev is kept
rl_f1_only     decor with alpha = 1 and lam = 1: the team's F1 and no judge

Prints a Markdown table and writes it to OUT/controls.md. Runs that are there go on where they were, and are not run twice.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig, load_config
from rolecast.methods.registry import find
from rolecast.schedule import last
from rolecast.stage_settings import SftConfig
from rolecast.stages.comparison import plan
from rolecast.stages.evaluate import evaluate
from rolecast.stages.gains import Scores, differences, scores_of
from rolecast.stages.inputs import inputs
from rolecast.stages.run import Run, create
from rolecast.stages.train import train
from rolecast.stages.working import seconds


@dataclass(frozen=True)
class Tested:
    result: dict[str, Any]
    scores: Scores


@dataclass(frozen=True)
class Controls:
    method: str
    preset: str
    seed: int
    out: Path
    overrides: Sequence[str]

    @property
    def entrant(self) -> str:
        return f"{self.method}:{self.preset}" if self.preset else self.method

    def config(self, *overrides: str) -> RunConfig:
        file = Path(str(find(self.method).preset(self.preset)))
        return load_config(file, [f"seed={self.seed}", *self.overrides, *overrides])

    def made(self, name: str, config: RunConfig) -> Run:
        run = create(self.out / name, config)
        inputs(run)
        return run

    def trained(self, run: Run, until: str = "") -> Tested:
        """Goes through the schedule, up to a stage, and evaluates its last model."""
        for stage in run.config.schedule:
            train(run, stage.name)
            if stage.name == until:
                break
        tested = until or last(run.config.schedule)
        return Tested(json.loads((evaluate(run, tested) / "result.json").read_text()), scores_of(run, tested))

    def untrained(self, method: str) -> RunConfig:
        """Taught as a comparison teaches it: on the rows of the demo's SFT."""
        [_, member] = plan([self.entrant, method], [self.seed], 1, list(self.overrides))
        return member.config


def controls(c: Controls, only: str | None) -> dict[str, Tested]:
    config = c.config()
    sft = [stage.name for stage in config.schedule if stage.kind == "sft"]
    rl = [stage.name for stage in config.schedule if stage.kind == "rl"]
    demo = c.made("demo", config)
    results = {"sft": c.trained(demo, sft[-1])}

    def wanted(name: str) -> bool:
        return only in (None, name)

    for name, method in {"closed_book": "direct", "one_search": "naive_rag"}.items():
        if wanted(name):
            results[name] = c.trained(c.made(name, c.untrained(method)))
    if wanted("rl") or wanted("sft_continued"):
        results["rl"] = c.trained(demo)
    if wanted("sft_continued"):
        longer = c.config(*[f"stages.{name}.steps={steps}" for name, steps in longer_sft(demo).items()])
        results["sft_continued"] = c.trained(c.made("sft_continued", longer), sft[-1])
    started = [f"stages.{name}.model={demo.model(name).resolve()}" for name in sft]
    shuffled = [text for name in rl for text in (f"stages.{name}.shuffle_rewards=true", f"stages.{name}.guard.fraction=0")]
    if wanted("rl_shuffled"):
        results["rl_shuffled"] = c.trained(c.made("rl_shuffled", c.config(*shuffled, *started)))
    if c.method == "decor" and wanted("rl_f1_only"):
        results["rl_f1_only"] = c.trained(c.made("rl_f1_only", c.config("method.alpha=1", "method.lam=1", *started)))
    return results


def longer_sft(demo: Run) -> dict[str, int]:
    """Steps of each SFT stage that take as long as SFT and all later stages together."""
    spent = seconds(demo)
    taught = {name: stage.steps for name, stage in demo.config.stages.items() if isinstance(stage, SftConfig)}
    total = sum(spent[stage.name] for stage in demo.config.schedule)
    return {name: round(steps * total / sum(spent[of] for of in taught)) for name, steps in taught.items()}


def table(tests: dict[str, Tested]) -> str:
    results = {name: tested.result for name, tested in tests.items()}
    types = sorted({kind for r in results.values() for kind in r["by_type"]})
    hops = sorted({count for r in results.values() for count in r["by_hops"]})
    lines = [
        f"| run | score | 95 % | − sft, question by question | {' | '.join([*types, *(f'{count} hops' for count in hops)])} |",
        "| --- " * (4 + len(types) + len(hops)) + "|",
    ]
    for name, r in results.items():
        measure = r["headline"]
        parts = [r["by_type"].get(kind, {}).get(measure) for kind in types] + [r["by_hops"].get(count, {}).get(measure) for count in hops]
        low, high = r["ci95"]
        cells = ["–" if part is None else f"{100 * part:.1f}" for part in parts]
        gained = differences(tests[name].scores, tests["sft"].scores).get(measure) if name != "sft" else None
        paired = f"{100 * gained['mean']:+.1f} [{100 * gained['low']:+.1f}, {100 * gained['high']:+.1f}]" if gained else ""
        lines.append(f"| {name} | {100 * r[measure]:.1f} | {100 * low:.1f} – {100 * high:.1f} | {paired} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="decor")
    parser.add_argument("--preset", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/controls"))
    parser.add_argument("--only")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    text = table(controls(Controls(given.method, given.preset, given.seed, given.out, given.set), given.only))
    (given.out / "controls.md").write_text(text + "\n")
    print(f"{text}\n\n{time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
