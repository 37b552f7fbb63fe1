"""Controls that need training, on the demo's preset: is the gain due to searching, to RL, and to what the rewards say?

    python benchmarks/controls.py [--seed 0] [--out runs/controls] [--only NAME]

closed_book    the same model trained on `direct` for the same steps: what can be answered without searching
one_search     the same for `naive_rag`: what one search with the question gives
sft_continued  the demo's SFT, longer by the time that its RL takes
rl             the demo itself
rl_shuffled    RL with rewards permuted inside groups; the collapse guard is off, the best checkpoint on dev is kept
rl_f1_only     RL with alpha = 1 and lam = 1: the team's F1 and no judge

Prints a Markdown table and writes it to OUT/controls.md. Runs that are already there are not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig, load_config
from rolecast.methods.decor import Decor
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.run import Run, create, seconds
from rolecast.stages.train import train
from rolecast.stages.world import world


def preset(seed: int, *overrides: str) -> RunConfig:
    return load_config(Path(str(Decor.preset("demo"))), [f"seed={seed}", *overrides])


def prepared(path: Path, config: RunConfig, sft_of: Run | None = None) -> Run:
    """The run, with the SFT model of another one if given."""
    run = create(path, config)
    world(run)
    inputs(run)
    if sft_of is not None and not run.stage("sft").exists():
        shutil.copytree(sft_of.stage("sft"), run.stage("sft"))
    return run


def result(run: Run, stage: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((evaluate(run, stage) / "result.json").read_text())
    return found


def controls(out: Path, seed: int, only: str | None) -> dict[str, dict[str, Any]]:
    demo = prepared(out / "demo", preset(seed))
    train(demo, "sft")
    results = {"sft": result(demo, "sft")}

    def wanted(name: str) -> bool:
        return only in (None, name)

    if wanted("closed_book"):
        run = prepared(out / "closed_book", preset(seed, "method={name: direct, prompts: compact, max_tokens: 16}", "stages.sft.mix={}"))
        train(run, "sft")
        results["closed_book"] = result(run, "sft")
    if wanted("one_search"):
        run = prepared(out / "one_search", preset(seed, "method={name: naive_rag, prompts: compact, max_tokens: 16}", "stages.sft.mix={}"))
        train(run, "sft")
        results["one_search"] = result(run, "sft")
    train(demo, "rl")
    results["rl"] = result(demo, "rl")
    if wanted("sft_continued"):
        spent = seconds(demo)
        steps = round(demo.config.sft("sft").steps * (1 + spent["rl"] / spent["sft"]))
        run = prepared(out / "sft_continued", preset(seed, f"stages.sft.steps={steps}"))
        train(run, "sft")
        results["sft_continued"] = result(run, "sft")
    for name, overrides in {
        "rl_shuffled": ["stages.rl.shuffle_rewards=true", "stages.rl.guard.fraction=0"],
        "rl_f1_only": ["method.alpha=1", "method.lam=1"],
    }.items():
        if wanted(name):
            run = prepared(out / name, preset(seed, *overrides), sft_of=demo)
            train(run, "rl")
            results[name] = result(run, "rl")
    return results


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| run | EM | 95 % | chains | comparisons | intersections | 1 hop | 2 | 3 | 4 |", "| --- " * 10 + "|"]
    for name, r in results.items():
        types = [f"{100 * r['by_type'][t]['em']:.1f}" if t in r["by_type"] else "–" for t in ("chain", "comparison", "intersection")]
        hops = [f"{100 * r['by_hops'][h]['em']:.1f}" if h in r["by_hops"] else "–" for h in "1234"]
        low, high = r["ci95"]
        lines.append(f"| {name} | {100 * r['em']:.1f} | {100 * low:.1f} – {100 * high:.1f} | " + " | ".join([*types, *hops]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/controls"))
    parser.add_argument("--only")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    text = table(controls(arguments.out, arguments.seed, arguments.only))
    (arguments.out / "controls.md").write_text(text + "\n")
    print(f"{text}\n\n{time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
