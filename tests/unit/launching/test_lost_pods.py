"""A pod that a drain or an eviction takes is no failure of the job; and a pod that is made anew has one follower of its log."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cluster_stage import Stage, terminated
from fake_api import FakeApi

from rolecast.launching.failure import JobFailed
from rolecast.launching.status import pod_ends

DRAINED: dict[str, Any] = {
    **terminated(143),
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
}


@pytest.mark.parametrize("status", [{"reason": "Evicted"}, DRAINED, {**terminated(137), "reason": "NodeShutdown"}])
def test_a_lost_pod_uses_up_no_retry(api: FakeApi, status: dict[str, Any]) -> None:
    stage = Stage(api, backoff={"retries": 0})
    for _ in range(3):
        stage.then(stage.pod("Failed", **status), stage.condition("Failed"))
    stage.then(lambda: api.objects["pods"].clear(), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert len(api.seen("POST", "pytorchjobs")) == 4
    assert any("lost a pod" in line and "from its last checkpoint" in line for line in stage.said)


def test_a_pod_that_vanished_is_a_lost_one_though_only_its_peer_tells_of_its_end(api: FakeApi) -> None:
    stage = Stage(api, nodes=2, backoff={"retries": 0})
    stage.then(stage.pod("Running"), stage.pod("Running", "worker-0"))
    stage.then(lambda: api.remove("pods", f"{stage.spec.job_name}-worker-0"))
    stage.then(stage.pod("Failed", **terminated(1, message="connection reset")), stage.condition("Failed"))
    stage.then(lambda: api.objects["pods"].clear(), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert len(api.seen("POST", "pytorchjobs")) == 2


def test_a_pod_that_was_lost_long_ago_excuses_nothing(api: FakeApi) -> None:
    stage = Stage(api, nodes=2, backoff={"retries": 0}, deadlines={"running": 9000})
    stage.clock.limit = 9000
    stage.then(stage.pod("Running"), stage.pod("Running", "worker-0"))
    stage.then(lambda: api.remove("pods", f"{stage.spec.job_name}-worker-0"))
    stage.then(stage.pod("Running", "worker-0"), stage.later(901))
    stage.then(stage.pod("Failed", **terminated(1)), stage.condition("Failed"))
    with pytest.raises(JobFailed, match="failed"):
        stage.launcher.run(stage.spec)


@pytest.mark.parametrize(("code", "reason"), [(2, "Error"), (3, "Error"), (137, "OOMKilled")])
def test_what_would_happen_again_does_so_also_on_a_node_that_is_drained(api: FakeApi, code: int, reason: str) -> None:
    stage = Stage(api, backoff={"retries": 3})
    stage.then(stage.pod("Failed", **{**DRAINED, **terminated(code, reason)}), stage.condition("Failed"))
    with pytest.raises(JobFailed) as caught:
        stage.launcher.run(stage.spec)
    assert not caught.value.lost


def test_a_pod_that_used_too_much_itself_was_not_taken_away() -> None:
    message = 'Usage of EmptyDir volume "dshm" exceeds the limit "2Gi".'
    (end,) = pod_ends([{"metadata": {"name": "a"}, "status": {"phase": "Failed", "reason": "Evicted", "message": message}}])
    assert not end.lost


def test_k7_a_pod_that_was_made_anew_is_followed_once(api: FakeApi) -> None:
    """Its log is read by its name, so the old one's follower would read it too."""
    stage = Stage(api)
    pod = f"{stage.spec.job_name}-master-0"
    api.logs[pod] = ["2026-01-01T00:00:00Z old line"]

    def anew() -> None:
        api.remove("pods", pod)
        api.logs[pod] = ["2026-01-01T00:01:00Z new line"]
        stage.pod("Running")()
        api.objects["pods"][pod]["metadata"]["uid"] = "uid-of-the-new-one"

    stage.then(stage.pod("Running"))
    stage.then(stage.heard("old line"))
    stage.then(anew)
    stage.then(stage.heard("new line"))
    stage.then(lambda: time.sleep(0.5))  # for a follower of the old one to say it again
    stage.then(lambda: api.objects["pods"][pod]["status"].update(phase="Succeeded"), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert [line for line in stage.said if line.startswith(pod)] == [f"{pod} | old line", f"{pod} | new line"]
