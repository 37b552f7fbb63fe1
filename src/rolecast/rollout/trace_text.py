"""An episode as text for a terminal."""

from __future__ import annotations

from rolecast.types import Observation, Trajectory


def conversation(episode: Trajectory) -> str:
    """What every role said, turn by turn, and the answer last."""
    lines = []
    for thread in episode.threads:
        for number, turn in enumerate(thread.turns):
            if isinstance(turn, Observation):
                if number:  # the prompt repeats what the lines above say
                    lines.append("  " + turn.text.strip().replace("\n", "\n  "))
                continue
            lines.append(f"{thread.role + ':':<10} {turn.text.strip()}")
    ending = episode.answer if episode.answer else f"(no answer: the episode ended as {episode.status})"
    return "\n".join([*lines, f"{'answer:':<10} {ending}"])
