"""Whether a wheel has what runs need besides modules: pipelines, prompts, presets, templates. Usage: wheel_contents.py WHEEL"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {"rolecast": ROOT / "src" / "rolecast", "rolecast_pipelines": ROOT / "pipelines" / "rolecast_pipelines"}
LEFT_OUT = ("__pycache__",)


def wanted() -> set[str]:
    """Every file of both packages, as a wheel names it."""
    return {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in SOURCES.items()
        for path in folder.rglob("*")
        if path.is_file() and not any(part in LEFT_OUT for part in path.parts)
    }


def missing(names: set[str]) -> list[str]:
    return sorted(wanted() - names)


def foreign(names: set[str]) -> list[str]:
    """What is in it and is no file of the packages, nor the wheel's own account of itself."""
    return sorted(name for name in names - wanted() if ".dist-info/" not in name)


def main(wheel: str) -> int:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    lacking, strange = missing(names), foreign(names)
    for name in lacking:
        print(f"{wheel}: lacks {name}", file=sys.stderr)
    for name in strange:
        print(f"{wheel}: has {name}, which is no file of the packages", file=sys.stderr)
    print(f"{wheel}: {len(names)} files")
    return 1 if lacking or strange else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
