"""`rolecast doctor`: what is installed, what is missing for which extra, and how to get it."""

from __future__ import annotations

import platform
import shutil
import textwrap

from rolecast.installed import NAME, extras, install, missing, version
from rolecast.threads import described


def doctor() -> None:
    """Show what this installation can do."""
    print(f"{NAME} {version(NAME)} on Python {platform.python_version()}, {described()}, {_accelerator()}")
    for extra, needs in sorted(extras().items()):
        if lacking := missing(needs):
            print(f"  {extra:<10} missing {', '.join(lacking)}: {install(extra)}")
        else:
            print(wrapped(extra, ", ".join(f"{need} {version(need)}" for need in needs)))
    for tool, purpose in (("helm", "installing the charts"), ("kubectl", "talking to a cluster")):
        print(
            f"  {tool:<10} {shutil.which(tool) or f'not on PATH; only needed for {purpose}: `make tools` in a clone puts it into .tools'}"
        )


def wrapped(name: str, told: str) -> str:
    """As wide as the terminal; a package is not torn from its version."""
    width = shutil.get_terminal_size((100, 24)).columns
    lines = textwrap.wrap(told.replace(" ", "\0").replace(",\0", ", "), max(40, width - 13), break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"  {name if not number else '':<10} {line}" for number, line in enumerate(lines)).replace("\0", " ")


def _accelerator() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}"
    return "no GPU"
