"""How pods of jobs and InferenceServices get at the S3 store: keys of a Secret, or the identity of their service account."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from pydantic import Field, StringConstraints

from rolecast.launching.fields import Closed, Name

Manifest = dict[str, Any]

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SESSION = "AWS_SESSION_TOKEN"  # a Secret may have it
CA_FOLDER, CA_KEY = "/etc/rolecast/s3-ca", "ca.crt"
TOKEN_FOLDER = "/var/run/secrets/rolecast/s3"
TOKEN_SECONDS = 3600  # the kubelet renews the file after four fifths of it

Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s@]+$")]


class S3Identity(Closed):
    """A token of the pod's account, exchanged at an STS for keys that expire. Where the cloud's own webhook adds it (EKS: an annotation
    of the account), leave this out."""

    audience: str = Field("sts.amazonaws.com", min_length=1)
    role_arn: str | None = Field(None, pattern=r"^arn:\S+$")
    sts_endpoint: Url | None = None  # AWS's own by default


class S3Access(Protocol):
    """Keys of a spec that say it."""

    @property
    def s3_secret(self) -> Name | None: ...  # null: by the account's identity
    @property
    def s3_identity(self) -> S3Identity | None: ...
    @property
    def s3_ca(self) -> Name | None: ...  # a ConfigMap with key `ca.crt`, of a private certificate authority


def env(access: S3Access) -> list[Manifest]:
    found: list[Manifest] = []
    if access.s3_secret:
        found += [{"name": key, "valueFrom": {"secretKeyRef": {"name": access.s3_secret, "key": key}}} for key in KEYS]
        found.append({"name": SESSION, "valueFrom": {"secretKeyRef": {"name": access.s3_secret, "key": SESSION, "optional": True}}})
    if access.s3_identity:
        found.append({"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": f"{TOKEN_FOLDER}/token"})
        if access.s3_identity.role_arn:
            found.append({"name": "AWS_ROLE_ARN", "value": access.s3_identity.role_arn})
        if access.s3_identity.sts_endpoint:
            found.append({"name": "AWS_ENDPOINT_URL_STS", "value": access.s3_identity.sts_endpoint})
    if access.s3_ca:
        found.append({"name": "AWS_CA_BUNDLE", "value": f"{CA_FOLDER}/{CA_KEY}"})
    return found


def volumes(access: S3Access) -> list[Manifest]:
    found: list[Manifest] = []
    if access.s3_identity:
        token = {"audience": access.s3_identity.audience, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
        found.append({"name": "s3-token", "projected": {"sources": [{"serviceAccountToken": token}]}})
    if access.s3_ca:
        found.append({"name": "s3-ca", "configMap": {"name": access.s3_ca}})
    return found


def mounts(access: S3Access) -> list[Manifest]:
    found: list[Manifest] = []
    if access.s3_identity:
        found.append({"name": "s3-token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    if access.s3_ca:
        found.append({"name": "s3-ca", "mountPath": CA_FOLDER, "readOnly": True})
    return found
