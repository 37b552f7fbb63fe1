from __future__ import annotations

from pathlib import Path

import pytest

from rolecast import working_copies
from rolecast.errors import ArtifactError, DiskError
from rolecast.working_copies import told, working_copy


def test_a_message_names_the_address_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_copies, "_ADDRESSES", {})
    fault = "/work/demo-1234/sft/model is no committed model"
    assert told(ArtifactError(fault)) == fault
    working_copy(Path("/work/demo-1234"), "s3://b/runs/demo")
    assert told(ArtifactError(fault)) == "s3://b/runs/demo/sft/model is no committed model"
    assert told(DiskError("/work/demo-1234 cannot be written: the disk is full")) == "/work/demo-1234 cannot be written: the disk is full"
