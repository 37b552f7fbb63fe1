"""Links in the documentation lead to files and headings that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "charts").glob("*.md"), *(ROOT / "images").glob("*.md"),
    *(ROOT / "manifests").rglob("*.md"),
]  # fmt: skip


def prose(page: Path) -> str:
    """Without code, where brackets are no links and # begins no heading."""
    return re.sub(r"`[^`\n]*`", "``", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as they are made on GitHub."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def broken(page: Path) -> list[str]:
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        place, _, anchor = link.partition("#")
        if "://" in place:
            continue
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A run's folder\n[a](#a-runs-folder) [b](#gone) [c](page.md#gone) [d](none.md) [e](https://x.test/) `[f](g)`\n")
    assert broken(page) == ["#gone", "page.md#gone", "none.md"]


def test_every_page_is_one_click_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)", (ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked
