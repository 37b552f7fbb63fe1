"""The files of docs/new_method.md, as they stand there: each block comes after a line that names its file."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "new_method.md"
PACKAGE = "rewrite_method"
_BLOCK = re.compile(r"^(?P<said>[^\n]*`(?P<file>[\w/]+\.\w+)`[^\n]*)\n\n```\w+\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def written(folder: Path) -> Path:
    """What a reader has typed, in a folder; the package's folder in it."""
    for block in _BLOCK.finditer(PAGE.read_text()):
        file = folder / block["file"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block["text"])
    return folder / PACKAGE
