"""Volumes that overrides bring into a pod, and where they are mounted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from rolecast.launching.fields import Given, ObjectName, Quantity

OWN_VOLUMES = ("tmp", "work", "shm", "dshm", "auth", "s3-ca", "s3-token")
OWN_FOLDERS = ("/tmp", "/work", "/dev/shm", "/etc/rolecast", "/var/run/secrets", "/mnt/models", "/opt/venv")

VolumeName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Folder = Annotated[str, StringConstraints(pattern=r"^/[^:]*[^:/]$")]
FileMode = Annotated[int, Field(ge=0, le=0o777)]


class Reference(Given):
    name: ObjectName
    optional: bool | None = None


class Item(Given):
    key: str
    path: str
    mode: FileMode | None = None


class ConfigMapVolume(Given):
    name: ObjectName
    items: tuple[Item, ...] | None = None
    default_mode: FileMode | None = None
    optional: bool | None = None


class SecretVolume(Given):
    secret_name: ObjectName
    items: tuple[Item, ...] | None = None
    default_mode: FileMode | None = None
    optional: bool | None = None


class ClaimVolume(Given):
    claim_name: ObjectName
    read_only: bool | None = None


class EmptyVolume(Given):
    size_limit: Quantity
    medium: Literal["", "Memory", "HugePages"] | None = None


class CsiVolume(Given):
    driver: str
    read_only: bool | None = None
    fs_type: str | None = None
    volume_attributes: dict[str, str] | None = None
    node_publish_secret_ref: Reference | None = None


class Storage(Given):
    storage: Quantity


class Requests(Given):
    requests: Storage


class ClaimSpec(Given):
    access_modes: tuple[Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany", "ReadOnlyMany"], ...]
    resources: Requests
    storage_class_name: ObjectName | None = None


class ClaimTemplate(Given):
    spec: ClaimSpec


class EphemeralVolume(Given):
    volume_claim_template: ClaimTemplate


class Volume(Given):
    """The kinds that the restricted Pod Security level takes; a node's own folders (hostPath) are not among them."""

    name: VolumeName
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    persistent_volume_claim: ClaimVolume | None = None
    empty_dir: EmptyVolume | None = None
    csi: CsiVolume | None = None
    ephemeral: EphemeralVolume | None = None

    @model_validator(mode="after")
    def _one(self) -> Volume:
        if len(self.said - {"name"}) != 1:
            raise ValueError(f"volume {self.name} is of one kind: configMap, secret, persistentVolumeClaim, emptyDir, csi or ephemeral")
        if self.name in OWN_VOLUMES:
            raise ValueError(f"volume {self.name} is Rolecast's own; give it another name")
        return self


class Mount(Given):
    name: VolumeName
    mount_path: Folder
    sub_path: str | None = None
    read_only: bool | None = None

    @model_validator(mode="after")
    def _free(self) -> Mount:
        for folder in OWN_FOLDERS:
            if f"{self.mount_path}/".startswith(f"{folder}/"):
                raise ValueError(f"mountPath {self.mount_path} is Rolecast's own ({folder}); mount it elsewhere")
        return self
