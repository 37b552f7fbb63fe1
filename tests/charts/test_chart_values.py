"""Values that would install something wrong are refused, by Helm 3 and 4 alike, with the key in the message."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.charts.rendering import CHART, INSTALLS, Helm

DIGEST = "sha256:" + "0" * 63  # one digit short
REFUSED = {
    "wrong type": ("judge.replicas=two", "replicas"),
    "number for text": ("global.s3.region=7", "region"),
    "switch that is no boolean": ("retriever.enabled=maybe", "enabled"),
    "unknown key": ("rollout.replica=3", "replica"),
    "unknown part": ("retreiver.replicas=2", "retreiver"),
    "unknown key of a part that is off": ("agent.runs=s3://rolecast/dev/runs/x", "runs"),
    "unknown key deep inside": ("judge.resources.limits.gpu=1", "gpu"),
    "empty store": ("global.s3.store=", "store"),
    "store without bucket": ("global.s3.store=s3://", "store"),
    "store that is no S3": ("global.s3.store=/data", "store"),
    "endpoint without scheme": ("global.s3.endpoint=minio:9000", "endpoint"),
    "no secret": ("global.s3.existingSecret=", "existingSecret"),
    "secret in values": ("global.s3.secretKey=hunter2", "secretKey"),
    "secret as a plain variable": ("judge.env.OPENAI_API_KEY=hunter2", "OPENAI_API_KEY"),
    "no release secret": ("rollout.release.existingSecret=", "existingSecret"),
    "release key in values": ("rollout.release.key=hunter2", "key"),
    "release key as a plain variable": ("rollout.env.ROLECAST_RELEASE_KEY=hunter2", "ROLECAST_RELEASE_KEY"),
    "token in values": ("global.auth.token=hunter2", "token"),
    "token as a plain variable": ("agent.env.ROLECAST_TOKEN=hunter2", "ROLECAST_TOKEN"),
    "keys of endpoints without a Secret": ("global.externals.keys[0]=BIG_KEY", "existingSecret"),
    "key of an endpoint in values": ("global.externals.BIG_KEY=hunter2", "BIG_KEY"),
    "key that is no variable": ("global.externals.keys[0]=big-key", "keys"),
    "no registry": ("global.image.registry=", "registry"),
    "tag that moves": ("global.image.tag=latest", "tag"),
    "pull policy that is none": ("global.image.pullPolicy=Sometimes", "pullPolicy"),
    "device that is none": ("global.device=tpu", "device"),
    "backend that is none": ("judge.backend=guess", "backend"),
    "digest of wrong length": (f"retriever.image.digest={DIGEST}", "digest"),
    "negative replicas": ("rollout.replicas=-1", "replicas"),
    "memory that is no quantity": ("rollout.resources.limits.memory=lots", "memory"),
    "folder without size": ("rollout.scratch.work=", "work"),
    "no index": ("retriever.index=", "index"),
    "agent without run": ("agent.enabled=true", "run"),
    "openai without url": ("judge.backend=openai", "url"),
    "alerts without runbooks": ("global.monitoring.rules=true", "runbooks"),
    "port out of range": ("global.networkPolicy.s3.ports[0]=99999", "ports"),
    "taint effect that is none": ("rollout.tolerations[0].effect=Never", "effect"),
    "one coordinator's address, of an earlier release": ("global.endpoints.coordinator=http://rolecast-coordinator:8300", "coordinator"),
    "announcements that are no place of a store": ("global.endpoints.coordinators=http://a:8300", "coordinators"),
    "a coordinator's port that only root may open": ("global.endpoints.coordinatorPort=80", "coordinatorPort"),
    "grace too short to drain": ("rollout.terminationGraceSeconds=20", "terminationGraceSeconds"),
    "grace of a service too short to drain": ("retriever.terminationGraceSeconds=20", "terminationGraceSeconds"),
    # What a schema cannot say is said by the templates.
    "part off, and nobody else's": ("judge.enabled=false", "global.endpoints.judge"),
    "workers without a judge": ("global.endpoints.judge=none", "global.endpoints.judge"),
    "a drain beside the grace": ("rollout.env.ROLECAST_DRAIN_SECONDS=300.0", "rollout.terminationGraceSeconds"),
    "a service's drain beside the grace": ("judge.env.ROLECAST_DRAIN_SECONDS=300.0", "judge.terminationGraceSeconds"),
    "CUDA without a GPU": ("rollout.device=cuda", "nvidia.com/gpu"),
    "maximum below minimum": ("retriever.autoscaling.enabled=true,retriever.autoscaling.maxReplicas=1", "maxReplicas"),
}


@pytest.mark.parametrize(("change", "key"), list(REFUSED.values()), ids=list(REFUSED))
def test_refused(helm: Helm, change: str, key: str) -> None:
    result = helm.template(*INSTALLS["dev"], sets=(change,))
    assert result.returncode != 0
    assert key in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "missing", ["global.image.registry", "global.s3.endpoint", "global.s3.store", "global.s3.existingSecret", "retriever.index"]
)
def test_required_has_no_default(helm: Helm, tmp_path: Path, missing: str) -> None:
    values = yaml.safe_load((CHART / "values-dev.yaml").read_text())
    *parents, last = missing.split(".")
    node = values
    for key in parents:
        node = node[key]
    del node[last]
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    result = helm.template(tmp_path / "values.yaml")
    assert result.returncode != 0
    assert last in result.stderr


@pytest.mark.parametrize(
    "missing", ["global.s3", "global.image.pullPolicy", "judge.resources", "rollout.scratch", "rollout.release", "learner.launcher"]
)
def test_default_cannot_be_taken_away(helm: Helm, missing: str) -> None:
    """`null` deletes a default; templates would then fail in their own, worse words, or not at all."""
    result = helm.template(*INSTALLS["dev"], sets=(f"{missing}=null",))
    assert result.returncode != 0
    assert missing.rsplit(".", 1)[-1] in result.stderr


@pytest.mark.parametrize(
    "change",
    [
        "global.s3.store=s3://my-bucket/some/prefix",
        "global.endpoints.retriever=https://search.test/v1",
        "agent.resources.limits.cpu=2",  # of a part that is off, and only one of its keys
        "judge.env.LOG_LEVEL=debug",
        "rollout.replicas=0",
        "global.endpoints.coordinators=s3://my-bucket/some/coordinators",
        "rollout.env.ROLECAST_COORDINATOR_URL=http://one:8300",
        "rollout.scratch.shm=1Gi",
    ],
)
def test_taken(helm: Helm, change: str) -> None:
    result = helm.template(*INSTALLS["dev"], sets=(change,))
    assert result.returncode == 0, result.stderr
