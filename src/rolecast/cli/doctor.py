"""`rolecast doctor`: what is installed, what is missing for which extra, and how to get it."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
from collections import defaultdict

from rolecast.threads import described


def doctor() -> None:
    """Show what this installation can do."""
    print(f"rolecast {_version('rolecast')} on Python {platform.python_version()}, {described()}, {_accelerator()}")
    for extra, needs in sorted(_extras().items()):
        missing = [need for need in needs if _version(need) is None]
        if missing:
            print(f"  {extra:<10} missing {', '.join(missing)}: pip install 'rolecast[{extra}]'")
        else:
            print(f"  {extra:<10} {', '.join(f'{need} {_version(need)}' for need in needs)}")
    for tool, purpose in (("helm", "installing the charts"), ("kubectl", "talking to a cluster")):
        print(f"  {tool:<10} {shutil.which(tool) or f'not on PATH; only needed for {purpose}'}")


def _extras() -> dict[str, list[str]]:
    """Packages of each extra, as the installed metadata says; the base requirements are the extra ''."""
    extras: dict[str, list[str]] = defaultdict(list)
    for requirement in importlib.metadata.requires("rolecast") or []:
        name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
        for extra in re.findall(r"extra == ['\"]([\w-]+)['\"]", requirement) or ["core"]:
            if name != "rolecast":
                extras[extra].append(name)
    return extras


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _accelerator() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}"
    return "no GPU"
