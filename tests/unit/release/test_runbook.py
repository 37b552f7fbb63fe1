"""Every alert of the chart has an entry in the runbook, under the heading that it links to, and there is no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RULES = (ROOT / "charts" / "rolecast" / "templates" / "prometheusrule.yaml").read_text()
PAGE = (ROOT / "docs" / "operations.md").read_text()


def entries() -> dict[str, str]:
    """The text below each heading of the third level in the part about alerts."""
    part = PAGE.split("\n## Alerts\n")[1].split("\n## ")[0]
    return {head: text for head, _, text in (entry.partition("\n") for entry in part.split("\n### ")[1:])}


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES)


def test_every_alert_has_an_entry_and_every_entry_an_alert() -> None:
    assert len(alerts()) >= 5
    assert sorted(entries()) == sorted(set(alerts()))


def test_every_alert_links_to_its_own_entry() -> None:
    rules = re.split(r"- alert: ", RULES)[1:]
    linked = {rule.split("\n")[0]: re.findall(r"#([a-z]+)$", rule, re.MULTILINE) for rule in rules}
    assert linked == {alert: [alert.lower()] for alert in alerts()}


def test_every_entry_says_what_to_do() -> None:
    assert all(re.search(r"^\*.+\*", text.strip()) and "\n1. " in text for text in entries().values())
