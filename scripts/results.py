"""Writes the tables of docs/results.md from what is committed under docs/results/ (`make results`).

    python scripts/results.py                        prints docs/results.md with its tables as the files say
    python scripts/results.py --add TABLE FILE …     takes summary.json or comparison.json files of runs into a table, each by its run's name

A table stands between `<!-- results: TABLE -->` and `<!-- end of TABLE -->`, and is made from docs/results/TABLE/*.json: a row for each
stage of a run's summary.json, or the methods of a comparison.json. Below it stands what made each file: commit, command, seeds, machine.
A file that does not say so is refused, and so is one whose code was not committed, or whose command names places of one machine alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
MARKED = re.compile(r"<!-- results: (?P<table>[a-z0-9_-]+) -->\n.*?<!-- end of (?P=table) -->", re.DOTALL)
Found = Mapping[str, Any]


class Refused(Exception):
    """A file that may not be shown."""


def page(text: str, folder: Path) -> str:
    """The page with every marked table as its files say."""
    marked = [found["table"] for found in MARKED.finditer(text)]
    if stray := sorted({path.name for path in folder.glob("*") if path.is_dir()} - set(marked)):
        raise Refused(
            f"docs/results/{stray[0]} has no place in docs/results.md: add <!-- results: {stray[0]} --> and <!-- end of {stray[0]} -->"
        )
    return MARKED.sub(
        lambda found: f"<!-- results: {found['table']} -->\n{table(folder / found['table'])}\n<!-- end of {found['table']} -->", text
    )


def table(folder: Path) -> str:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise Refused(f"docs/results/{folder.name} holds no .json: add a run's with scripts/results.py --add {folder.name} summary.json")
    read = {path.stem: checked(path) for path in files}
    if kinds := {"pairs" in found for found in read.values()} - {"pairs" in next(iter(read.values()))}:
        raise Refused(f"docs/results/{folder.name} holds summaries and comparisons ({len(kinds) + 1} kinds): give each a table")
    compared = "pairs" in next(iter(read.values()))
    body = "\n\n".join(comparison(found) for found in read.values()) if compared else summaries(read)
    return f"\n{body}\n\n" + "\n".join(made(name, found) for name, found in read.items()) + "\n"


def checked(path: Path) -> Found:
    """The file's content; `Refused` where it does not say what made it, or says what nobody else can make again."""
    try:
        found: Found = json.loads(path.read_text())
        origin = found.get("origin") or {}
        missing = [part for part in ("commits", "commands", "machines") if not (origin.get(part) and isinstance(origin[part], list))]
    except (ValueError, AttributeError) as error:
        raise Refused(f"{path}: it is damaged ({error}); take it from the run anew") from None
    if missing or (found.get("seed") is None and not found.get("seeds")):
        raise Refused(f"{path}: it does not say its {(missing or ['seed'])[0]}; take a summary.json that `rolecast report` wrote")
    for commit in origin["commits"]:
        if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
            raise Refused(
                f"{path}: commit {commit!r} is none that can be checked out; make the run from committed sources (or set ROLECAST_COMMIT)"
            )
    for command in origin["commands"]:
        if re.search(r"(^|[\s=:'\"])/", command):
            raise Refused(f"{path}: command `{command}` names a place of one machine; give relative paths")
    try:
        if not found.get("stages") and not found.get("pairs"):
            raise KeyError("stages")
        comparison(found) if "pairs" in found else summaries({path.stem: found})
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"{path}: what it says cannot be shown ({type(error).__name__}: {error}); take it from the run anew") from None
    return found


def summaries(read: Mapping[str, Found]) -> str:
    stages = {(name, stage): result for name, found in read.items() for stage, result in found["stages"].items()}
    hops = sorted({count for result in stages.values() for count in result["by_hops"]})
    types = sorted({kind for result in stages.values() for kind in result["by_type"]} - {"unknown"})
    others = list(dict.fromkeys(other for result in stages.values() for other in result.get("others", {})))
    beside = [title for other in others for title in (other, f"{other} − its start of RL")]
    split = [*(f"{count} hop{'s' if count != '1' else ''}" for count in hops), *types]
    head = ["run", "score", "− its start of RL", *beside, *split, "tokens / question", "searches", "n"]
    rows = []
    for (name, stage), result in stages.items():
        measure = result.get("headline", "em")
        parts = [result["by_hops"].get(count, {}).get(measure) for count in hops] + [
            result["by_type"].get(kind, {}).get(measure) for kind in types
        ]
        cost = [f"{result['tokens_per_question']:.0f}", f"{result['searches_per_question']:.1f}", f"{result['n']:,}"]
        profile = f", {result['profile']}" if result.get("profile") else ""
        gains = read[name].get("gains", {}).get("stages", {}).get(stage, {})
        further = [cell for other in others for cell in (scored(result[other], result["others"][other]["ci95"]), gained(gains.get(other)))]
        scores = [scored(result[measure], result["ci95"]), gained(gains.get(measure)), *further]
        rows.append([f"{name}, {stage}{profile}", *scores, *map(percent, parts), *cost])
    return markdown(head, rows)


def comparison(found: Found) -> str:
    first = found["methods"][0]["method"]
    against = {pair["a"]: pair for pair in found["pairs"] if pair["b"] == first}
    head = [
        "method",
        found["measure"].upper(),
        "± over seeds",
        f"− {first}",
        "before RL",
        "RL tokens",
        "tokens / question",
        "searches",
        "longest context",
        "minutes",
    ]
    rows = []
    for row in found["methods"]:
        pair, said = against.get(row["method"]), row["evaluation"]["sampled"] + row["evaluation"]["frozen"]
        rows.append([
            row["method"], scored(row["mean"], (row["low"], row["high"])), percent(row["spread"]),
            scored(pair["mean"], (pair["low"], pair["high"]), "+") if pair else "", percent(row["start"]["mean"] if row["start"] else None),
            f"{row['training']['sampled']:,.0f}", f"{said:.0f}", f"{row['evaluation']['searches']:.1f}",
            str(max(row["evaluation"]["context"].values(), default=0)), f"{sum(row['seconds'].values()) / 60:.1f}",
        ])  # fmt: skip
    return markdown(head, rows)


def made(name: str, found: Found) -> str:
    origin, seeds = found["origin"], found.get("seeds") or [found["seed"]]
    parts = [
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}", f"commit {', '.join(commit[:12] for commit in origin['commits'])}",
        *(f"`{command}`" for command in origin["commands"]), *origin["machines"],
    ]  # fmt: skip
    return f"- {name}: {'; '.join(parts)}."


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows)])


def scored(mean: float, bounds: Sequence[float] | None, sign: str = "") -> str:
    if bounds and not -1 <= bounds[0] - 1e-9 <= mean <= bounds[1] + 1e-9 <= 1.001:
        raise ValueError(f"{mean} is not between {bounds[0]} and {bounds[1]}, or those are no shares")
    form = f"{{:{sign}.1f}}"
    return form.format(100 * mean) + (f" [{form.format(100 * bounds[0])}, {form.format(100 * bounds[1])}]" if bounds else "")


def gained(difference: Found | None) -> str:
    """A paired difference with its interval."""
    return scored(difference["mean"], (difference["low"], difference["high"]), "+") if difference else ""


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def add(folder: Path, name: str, files: Sequence[Path]) -> None:
    """Each file under the name of its run's folder."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file in files:
        checked(file)
        (folder / name / f"{file.resolve().parent.name}.json").write_text(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", metavar="TABLE")
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    try:
        if given.add:
            add(PAGE.with_suffix(""), given.add, given.files)
        else:
            sys.stdout.write(page(PAGE.read_text(), PAGE.with_suffix("")))
    except Refused as refused:
        sys.exit(f"results: {refused}")


if __name__ == "__main__":
    main()
