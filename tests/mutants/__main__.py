"""`python -m tests.mutants`: puts each fault into a copy of the sources and runs the tests that are to notice it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants import trial
from tests.mutants.covering import COVERING, covering
from tests.mutants.drawn import draw
from tests.mutants.equivalent import why
from tests.mutants.mutant import Mutant, listed
from tests.mutants.of_runs import WIRING
from tests.mutants.of_sharded import SHARDED
from tests.mutants.of_training import TERMS
from tests.mutants.trial import Outcome

LEAST = 0.95  # share of the faults that the tests must notice
SIDES = 2  # trials at once
LIMIT = 150.0  # seconds of a trial; the tests of a file take some 15
SLOW_LIMIT = 900.0  # the slow ones take some 270


def by_hand() -> list[Mutant]:
    lists = (("term", TERMS), ("wiring", WIRING))
    return [listed(kind, file, *one) for kind, files in lists for file, found in files.items() for one in found]


def sharded() -> list[Mutant]:
    """Those that slow tests are to notice."""
    return [listed("sharded", file, *one) for file, found in SHARDED.items() for one in found]


def every(seed: int) -> list[Mutant]:
    """The hand-written ones, and as many drawn."""
    written = by_hand()
    return [*written, *draw(list(COVERING), len(written), seed)]


def main(arguments: Sequence[str] | None = None) -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    asked.add_argument("--list", action="store_true", help="name the mutants and run nothing")
    asked.add_argument("--only", metavar="NAME", action="append", help="those whose name, kind or file holds this; may be repeated")
    asked.add_argument("--seed", type=int, default=0, help="of the drawn ones")
    asked.add_argument("--slow", action="store_true", help="instead, those of what only jobs of several processes run; an hour")
    asked.add_argument("--out", type=Path, help="also write the summary to this file")
    options = asked.parse_args(arguments)
    everything = sharded() if options.slow else every(options.seed)
    chosen = [m for m in everything if not options.only or any(part in f"{m.name} {m.kind} {m.file}" for part in options.only)]
    if not chosen:
        asked.error(f"no mutant is called like {' or '.join(options.only)}; --list names them")
    if options.list:
        print("\n".join(f"{m.file}:{m.line}  {m.kind}: {m.name}{'  (equivalent)' if why(m) else ''}" for m in chosen))
        return 0
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # before the server of the trials starts
    trial.FORKS.set_forkserver_preload(trial.IMPORTED)
    with trial.compiled() as sources:
        outcomes = list(_outcomes(chosen, sources, options.slow))
    lines = list(_summary(chosen, outcomes))
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    return 0 if lines[-1].startswith("enough") else 1


def _outcomes(chosen: Sequence[Mutant], sources: Path, slow: bool) -> Iterator[Outcome]:
    """A slow test has processes enough of its own."""
    sides = ThreadPoolExecutor(1 if slow else SIDES)
    limit = SLOW_LIMIT if slow else LIMIT
    places = sorted({place for m in chosen for place in covering(m.file, slow)})
    plain = trial.try_out(None, sources, places, 4 * limit, slow)
    if plain.fate != "survived":
        raise SystemExit(f"without a mutant the tests do not pass ({plain.by}); mend that first\n{plain.output[-3000:]}")
    todo = [m for m in chosen if not why(m)]
    for number, outcome in enumerate(sides.map(lambda m: trial.try_out(m, sources, covering(m.file, slow), limit, slow), todo), 1):
        assert outcome.mutant is not None
        print(
            f"[{number}/{len(todo)}] {outcome.fate} {outcome.mutant.name}: {outcome.by} ({outcome.seconds:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        yield outcome


def _summary(chosen: Sequence[Mutant], outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.fate != "survived" and outcome.mutant is not None:
            yield f"{outcome.fate}: {outcome.mutant.file}:{outcome.mutant.line} {outcome.mutant.name} by {outcome.by}"
    for mutant in chosen:
        if reason := why(mutant):
            yield f"equivalent: {mutant.file}:{mutant.line} {mutant.name}: {reason}"
    for outcome in outcomes:
        if outcome.fate == "survived" and outcome.mutant is not None:
            yield f"SURVIVED: {outcome.mutant.file}:{outcome.mutant.line} {outcome.mutant.name}\n{outcome.mutant.diff}"
    for kind in dict.fromkeys(m.kind for m in chosen):
        own = [o for o in outcomes if o.mutant is not None and o.mutant.kind == kind]
        killed = sum(o.fate != "survived" for o in own)
        if own:
            yield f"{kind}: {killed} of {len(own)} killed ({killed / len(own):.0%})"
    killed = sum(o.fate != "survived" for o in outcomes)
    late = sum(o.fate == "timed out" for o in outcomes)
    left_out = len(chosen) - len(outcomes)
    rate = killed / max(1, len(outcomes))
    yield f"{'enough' if rate >= LEAST and left_out <= len(chosen) / 10 else 'NOT ENOUGH'}: {killed} of {len(outcomes)} killed ({rate:.1%}), {late} of them by the time limit; {left_out} equivalent ones left out"


if __name__ == "__main__":
    sys.exit(main())
