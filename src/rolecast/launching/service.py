"""The Service in front of a job's coordinator: secured before the job is created, owned by the job, gone when the job is done."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecast.launching.api_errors import Exists
from rolecast.launching.cluster import KINDS, Cluster, JobKind, Resource
from rolecast.launching.failure import Denied, LaunchError
from rolecast.launching.learner_pod import Manifest
from rolecast.launching.patience import Patience
from rolecast.launching.status import dying, ended

JOB = "app.kubernetes.io/instance"  # the label that names a Service's job
ATTEMPTS = 5


@dataclass(slots=True)
class Front:
    """`made`: names and uids of the Services that are new."""

    cluster: Cluster
    kind: JobKind
    patience: Patience
    made: list[tuple[str, str, str]] = field(default_factory=list)

    def secure(self, manifest: Manifest, job: Resource | None = None) -> None:
        """A Service as `manifest` says is there after this; `job`: who may own it already. One that a job left which has ended is replaced,
        as is one that was applied by hand for such a job; one of a live job is a `LaunchError`."""
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        for _ in range(ATTEMPTS):
            found = self.patience.insist(lambda: self.cluster.service(namespace, name))
            if found is None:
                try:
                    created = self.patience.insist(lambda: self.cluster.create_service(manifest))
                    self.made.append((namespace, name, created["metadata"]["uid"]))
                    return
                except Exists:  # a lost answer, another launcher, or one that is going
                    self.patience.sleep(1.0)
                    continue
            if _same(found, manifest) and _stays(found, job):
                return
            self._require_free(found, manifest)
            uid = found["metadata"]["uid"]
            self.patience.insist(lambda: self.cluster.delete_service(namespace, name, uid))  # noqa: B023 (called at once)
        raise LaunchError(f"Service {name} in namespace {namespace} is made again whenever it is deleted; see who does it")

    def _require_free(self, found: Resource, manifest: Manifest) -> None:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        labels = found["metadata"].get("labels") or {}
        holder = labels.get(JOB)
        if not holder or labels.get("app.kubernetes.io/part-of") != "rolecast":
            raise LaunchError(f"Service {name} in namespace {namespace} is not of Rolecast; delete it, or give this job another name")
        if holder != manifest["metadata"]["labels"][JOB] and self._lives(namespace, holder):
            raise LaunchError(
                f"Service {name} in namespace {namespace} belongs to another job, {holder}, which has not ended; "
                "wait for it, or give this job another name"
            )

    def _lives(self, namespace: str, job: str) -> bool:
        for kind in KINDS.values():
            try:
                found = self.patience.insist(lambda: self.cluster.list_job(kind, namespace, job)[0])  # noqa: B023
            except Denied:  # its operator is not installed, or is none of ours
                if kind.plural == self.kind.plural:
                    raise
                continue
            if found is not None and ended(found) is None and not dying(found):
                return True
        return False

    def give(self, manifest: Manifest, job: Resource) -> None:
        """Makes the job the owner, so that the Service goes with it. A Service that has the owner already is left as it is."""
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        found = self.patience.insist(lambda: self.cluster.service(namespace, name))
        if found is None:
            raise LaunchError(f"Service {name} in namespace {namespace} was deleted while its job was submitted; submit again")
        if owned(found, job):
            return
        owner = {"apiVersion": self.kind.api_version, "kind": job["kind"], "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        uid = found["metadata"]["uid"]
        self.patience.insist(lambda: self.cluster.patch_service(namespace, name, uid, {"ownerReferences": [owner]}))

    def remove(self, manifest: Manifest, job: Resource) -> None:
        """After the job's end: nobody is behind its Service any more."""
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        found = self.patience.courtesy(lambda: self.cluster.service(namespace, name))
        if found is not None and owned(found, job):
            self.patience.courtesy(lambda: self.cluster.delete_service(namespace, name, found["metadata"]["uid"]))

    def undo(self) -> None:
        """Deletes what is new."""
        for namespace, name, uid in self.made:
            self.patience.courtesy(lambda: self.cluster.delete_service(namespace, name, uid))  # noqa: B023
        self.made.clear()


def owned(service: Resource, job: Resource) -> bool:
    return job["metadata"]["uid"] in {owner["uid"] for owner in service["metadata"].get("ownerReferences") or []}


def fronts(service: Resource, job: Resource) -> bool:
    """Whether it is this job's: by its labels, and by its owner if it has one."""
    labels = service["metadata"].get("labels") or {}
    ours = (labels.get("app.kubernetes.io/part-of"), labels.get("app.kubernetes.io/component")) == ("rolecast", "coordinator")
    free = not service["metadata"].get("ownerReferences")
    return ours and labels.get(JOB) == job["metadata"]["name"] and (free or owned(service, job))


def _same(found: Resource, manifest: Manifest) -> bool:
    """Whether it leads to the same port of the same pods. The server fills in more than a manifest says."""
    ports = [[(port["port"], port.get("targetPort")) for port in service["spec"].get("ports") or []] for service in (found, manifest)]
    return found["spec"].get("selector") == manifest["spec"]["selector"] and ports[0] == ports[1]


def _stays(service: Resource, job: Resource | None) -> bool:
    """Whether nobody is about to delete it. One that an earlier job owned goes as soon as the garbage collector comes to it."""
    if dying(service):
        return False
    return not service["metadata"].get("ownerReferences") or (job is not None and owned(service, job))
