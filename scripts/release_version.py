"""Whether a tag, the package, the charts, the images and the changelog name one version. Usage: release_version.py vX.Y.Z"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions(root: Path = ROOT) -> dict[str, str]:
    """What each of them says, by where it stands."""
    found = {"pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]}
    for chart in sorted((root / "charts" / "rolecast").rglob("Chart.yaml")):
        for key in ("version", "appVersion"):
            if line := re.search(rf"^{key}: (\S+)$", chart.read_text(), re.MULTILINE):
                found[f"{chart.relative_to(root)} {key}"] = line[1]
    bake = re.search(r'variable "VERSION" \{\s*default = "([^"]+)"', (root / "docker-bake.hcl").read_text())
    found["docker-bake.hcl"] = bake[1] if bake else ""
    return found


def faults(tag: str, root: Path = ROOT) -> list[str]:
    version = tag.removeprefix("v")
    told = [f"{where} says {other}" for where, other in versions(root).items() if other != version]
    if not re.search(rf"^## {re.escape(version)}\b", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        told.append(f"CHANGELOG.md has no heading ## {version}")
    return told


def main(tag: str) -> int:
    told = faults(tag)
    for fault in told:
        print(f"{tag}: {fault}", file=sys.stderr)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
