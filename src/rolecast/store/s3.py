"""`Store` over S3 (MinIO, SeaweedFS, AWS, …).

An artifact's files lie under its key as they are named, so that other readers (KServe, a person) find them. Two objects make
that safe. `.claim`, written before the files and only if it is absent, holds the manifest of the one artifact that may be
uploaded under the key: a writer with another one is turned away before it overwrites anything. `manifest.json`, written after
the files and only if it is absent, is the commit. A killed upload leaves a claim: publishing the same artifact goes on with
it, another one needs a `delete` first, which only whoever knows that the writer is dead may do.
"""

from __future__ import annotations

import io
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from shutil import copyfileobj
from time import monotonic
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from minio import Minio
from minio.credentials.providers import Provider, StaticProvider
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, S3Error, ServerError
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError, ProxyError

from rolecast.errors import ArtifactError, InputError, StoreError, WrongStoreError
from rolecast.retries import Tries
from rolecast.store.artifact import MANIFEST, entry_of, parse_manifest, receiving, verified
from rolecast.store.credentials import clocks_apart, provider_of
from rolecast.store.faults import CredentialsFault
from rolecast.store.keys import below, checked, missing, require_same
from rolecast.store.local import holds
from rolecast.store.transport import CA_BUNDLE, pool_for

log = logging.getLogger(__name__)
T = TypeVar("T")
CLAIM = ".claim"
_PROBE = ".conditional"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PATIENCE = 120.0  # seconds that a request is tried again for while the server is away or overloaded, as long as other services are
PART = 16 * 2**20  # bytes of one part of a large upload
PIECE = 2**20  # bytes that a download holds at a time
SIGNED = timedelta(minutes=10)  # how long a conditional put may be on its way
DAMAGED = 3  # times that a file which does not match its manifest is fetched
WORKERS = 4  # files that travel at once
_AGAIN = {"InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict"}
_AWAY = {500, 502, 503, 504}  # 501 is for good
_REFUSED = {  # and what to check then
    "AccessDenied": "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their rights, or those of the role",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY",
    "AuthorizationHeaderMalformed": "check ROLECAST_S3_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "InvalidToken": "AWS_SESSION_TOKEN does not belong to the keys; take all three anew",
    "InvalidTokenId": "AWS_SESSION_TOKEN does not belong to the keys; take all three anew",
    "ExpiredToken": "the session is over; take AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN anew",
}
_SKEWED = {"RequestTimeTooSkewed", "RequestExpired"}


class S3Store:
    def __init__(
        self, endpoint: str, bucket: str, prefix: str, access_key: str = "", secret_key: str = "", region: str = "us-east-1", *,
        provider: Provider | None = None, environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Keys, or a provider of keys that expire. `environ` names proxies and certificate authorities."""
        self.endpoint, self.bucket, self.prefix = endpoint, bucket, checked(prefix, prefix=True)
        self._answered = False  # ever: else the address may be at fault
        self._conditional = False  # whether the server was found to honour If-None-Match
        at = urlsplit(endpoint)
        if at.scheme not in ("http", "https") or not at.netloc or at.path.strip("/"):
            raise InputError(f"ROLECAST_S3_ENDPOINT is {endpoint!r}; write http(s)://host:port")
        if not _BUCKET.fullmatch(bucket):
            raise InputError(f"{bucket!r} is no name of a bucket: 3 to 63 of a-z, 0-9, dot and hyphen; mend ROLECAST_STORE")
        self._http: PoolManager = pool_for(endpoint, environ, 4 * WORKERS)
        self._client = Minio(
            endpoint=at.netloc, credentials=provider or StaticProvider(access_key, secret_key), secure=at.scheme == "https", region=region,
            http_client=self._http,
        )  # fmt: skip

    @classmethod
    def from_environment(cls, bucket: str, prefix: str, environ: Mapping[str, str]) -> S3Store:
        endpoint, region = (
            environ.get("ROLECAST_S3_ENDPOINT"),
            environ.get("ROLECAST_S3_REGION") or environ.get("AWS_REGION") or "us-east-1",
        )
        if not endpoint:
            raise InputError(f"s3://{bucket} needs ROLECAST_S3_ENDPOINT in the environment, and keys or an identity beside it")
        provider = provider_of(environ, region, lambda url: pool_for(url, environ, 1), f"s3://{bucket}")
        return cls(endpoint, bucket, prefix, region=region, provider=provider, environ=environ)

    def publish(self, folder: Path, key: str) -> None:
        manifest, where = verified(folder), self._where(key)
        present = self.get(f"{checked(key)}/{MANIFEST}")
        if present is None:
            self._claim(key, manifest)
            names = parse_manifest(manifest, str(folder))["files"]
            with ThreadPoolExecutor(WORKERS) as pool:
                for _ in pool.map(lambda name: self._upload(folder / name, f"{key}/{name}"), names):
                    pass
            if self._write(f"{key}/{MANIFEST}", manifest, absent=True):
                return
            present = self.get(f"{key}/{MANIFEST}") or b""
        require_same(present, manifest, where)

    def _claim(self, key: str, manifest: bytes) -> None:
        self.require_conditional_puts()
        name = f"{key}/{CLAIM}"
        if not self._write(name, manifest, absent=True) and self._read(name) != manifest:
            raise ArtifactError(
                f"{self._where(key)} is claimed by another artifact, whose upload has not ended; publish under another key, "
                "or delete this one first if its writer is dead"
            )

    def require_conditional_puts(self) -> None:
        """Raises StoreError where the server overwrites what is to be written only if it is absent. Once for each store and process.

        The record stays, so that whoever may not delete can publish too.
        """
        if not self._conditional and all(self._write_absent(_PROBE, uuid.uuid4().bytes) for _ in range(2)):
            raise StoreError(
                f"{self._where('')}: {self.endpoint} ignores If-None-Match, so of two writers of one key neither would be told; "
                "take a server with conditional writes, such as a present MinIO, SeaweedFS or AWS S3"
            )
        self._conditional = True

    def fetch(self, key: str, folder: Path) -> Path:
        where, manifest = self._where(key), self.get(f"{checked(key)}/{MANIFEST}")
        if manifest is None:
            raise missing(where)
        if not holds(folder, manifest):
            files = parse_manifest(manifest, where)["files"]
            with receiving(folder, manifest, where) as (partial, names), ThreadPoolExecutor(WORKERS) as pool:
                for _ in pool.map(lambda name: self._download(f"{key}/{name}", partial / name, files[name]), names):
                    pass
        return folder

    def committed(self, key: str) -> bool:
        return self.get(f"{checked(key)}/{MANIFEST}") is not None

    def artifacts(self, prefix: str) -> list[str]:
        suffix = f"/{MANIFEST}"
        found = [key.removesuffix(suffix) for key in self._list(checked(prefix, prefix=True)) if key.endswith(suffix)]
        return sorted(key for key in found if not any(part.startswith(".") for part in key.split("/")))

    def unfinished(self, prefix: str) -> list[str]:
        names = set(self._list(checked(prefix, prefix=True)))
        claimed = [name.removesuffix(f"/{CLAIM}") for name in names if name.endswith(f"/{CLAIM}")]
        return sorted(key for key in claimed if f"{key}/{MANIFEST}" not in names)

    def put(self, key: str, data: bytes, *, absent: bool = False) -> bool:
        return self._write(checked(key), data, absent=absent)

    def get(self, key: str) -> bytes | None:
        return self._read(checked(key))

    def keys(self, prefix: str) -> list[str]:
        found = self._list(checked(prefix, prefix=True))
        return sorted(key for key in found if not any(part.startswith(".") for part in key.split("/")))

    def delete(self, prefix: str) -> None:
        keys = self._list(checked(prefix))
        claims = [key for key in keys if key.endswith(f"/{CLAIM}")]
        manifests = [key for key in keys if key.endswith(f"/{MANIFEST}")]
        others = [key for key in keys if key not in {*claims, *manifests}]
        for group in (manifests, others, claims):  # claims last: until then nobody may upload here
            self._remove(group)

    # Objects

    def _name(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix and key else self.prefix or key

    def _where(self, key: str) -> str:
        return f"s3://{self.bucket}/{self._name(key)}"

    def _write(self, key: str, data: bytes, absent: bool) -> bool:
        if absent:
            return self._write_absent(key, data)
        self._call(lambda: self._client.put_object(self.bucket, self._name(key), io.BytesIO(data), len(data)))
        return True

    def _write_absent(self, key: str, data: bytes) -> bool:
        """A conditional PUT. The client has none of its own, so the request is presigned and the header added.

        If an answer is lost, the next try finds the object taken, perhaps by ourselves: then equal bytes count as written, so
        writers that race must write different ones.
        """
        tries = 0

        def once() -> bool:
            nonlocal tries
            tries += 1
            begun = monotonic()
            url = self._client.get_presigned_url("PUT", self.bucket, self._name(key), expires=SIGNED)
            reply = self._http.urlopen("PUT", url, body=data, headers={"If-None-Match": "*"})
            if reply.status == 403 and monotonic() - begun > SIGNED.total_seconds():  # a machine that slept meanwhile, not a bad key
                return once()
            if reply.status == 412:
                return tries > 1 and self._read(key) == data
            if reply.status != 200:
                if reply.status >= 500 or not reply.data:
                    raise ServerError(f"status {reply.status}", reply.status)
                raise S3Error.fromxml(reply)
            return True

        return self._call(once)

    def _read(self, key: str) -> bytes | None:
        def once() -> bytes | None:
            with closing(self._client.get_object(self.bucket, self._name(key))) as reply:
                return bytes(reply.read())

        return self._call(once, absent=None)

    def _upload(self, file: Path, key: str) -> None:
        self._call(lambda: self._client.fput_object(self.bucket, self._name(key), str(file), part_size=PART))

    def copy_to(self, key: str, file: Path) -> bool:
        """Writes a record of any size into a file, a piece at a time; whether there is one."""

        def once() -> bool:
            with closing(self._client.get_object(self.bucket, self._name(key))) as reply, file.open("wb") as out:
                copyfileobj(reply, out, PIECE)
            return True

        return self._call(once, absent=False)

    def _download(self, key: str, file: Path, expected: Mapping[str, Any]) -> None:
        """What comes damaged is fetched again, as it may have been so on its way alone; whoever receives it compares once more."""
        file.parent.mkdir(parents=True, exist_ok=True)
        for tried in range(1, DAMAGED + 1):
            if not self.copy_to(key, file):
                raise ArtifactError(f"{self._where(key)} is missing, though a manifest names it; delete the artifact and publish it again")
            if entry_of(file) == expected:
                return
            log.warning("%s came damaged, in %d of at most %d tries", self._where(key), tried, DAMAGED)

    def _list(self, prefix: str) -> list[str]:
        """Keys at or below `prefix`."""
        start = len(self.prefix) + 1 if self.prefix else 0
        found = self._call(
            lambda: [item.object_name or "" for item in self._client.list_objects(self.bucket, self._name(prefix), recursive=True)]
        )
        return [key for key in (name[start:] for name in found) if below(key, prefix)]

    def _remove(self, keys: list[str]) -> None:
        def once() -> None:
            errors = list(self._client.remove_objects(self.bucket, (DeleteObject(self._name(key)) for key in keys)))
            if errors:
                raise StoreError(f"s3://{self.bucket}/{errors[0].name} cannot be deleted ({errors[0].code}); check the permissions")

        if keys:
            self._call(once)

    def _call(self, once: Callable[[], T], **absent: T) -> T:
        """Tries again what may pass; every other fault becomes one line. With `absent`, that is the result for no such object."""
        tries = Tries(PATIENCE)
        while True:
            there = True
            try:
                result = once()
                self._answered = True
                return result
            except S3Error as error:
                if error.code == "NoSuchKey" and absent:
                    self._answered = True
                    return absent["absent"]
                fault, again = self._named(error), error.code in _AGAIN or error.response.status in _AWAY
            except ServerError as error:
                fault, again = f"{self.endpoint} answers with status {error.status_code}", error.status_code in _AWAY
            except InvalidResponseError as error:  # no XML: a gateway whose server is restarting, or no S3 at all
                fault, again = f"{self.endpoint} does not answer like an S3 server; check ROLECAST_S3_ENDPOINT", error._code in _AWAY
            except CredentialsFault as error:
                fault, again = str(error), error.again
            except HTTPError as error:
                fault, again = self._unreached(error)
                there = False
            pause = tries.pause() if again else None
            if pause is None:
                raise (StoreError if self._answered or (again and there) else WrongStoreError)(f"s3://{self.bucket}: {fault}") from None
            if tries.count == 2:  # once per request, not once per try
                log.warning("%s; trying again for %g s", fault, PATIENCE)
            time.sleep(pause)

    def _unreached(self, error: HTTPError) -> tuple[str, bool]:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return f"{self.endpoint} shows a certificate that is not trusted; name its authority's in {CA_BUNDLE}", False
        if isinstance(error, ProxyError):
            return f"{self.endpoint} cannot be reached through the proxy; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY", True
        return f"{self.endpoint} cannot be reached ({type(error).__name__}); check ROLECAST_S3_ENDPOINT", True

    def _named(self, error: S3Error) -> str:
        if error.code == "NoSuchBucket":
            return f"there is no such bucket at {self.endpoint}; create it, or mend ROLECAST_STORE"
        if error.code in _SKEWED:
            return f"{self.endpoint} refuses the time ({error.code}){clocks_apart(error.response) or '; set the clock (NTP)'}"
        if error.code in _REFUSED:
            # A wrong clock makes every signature wrong, and not all servers say so.
            return f"{self.endpoint} refuses the credentials ({error.code}){clocks_apart(error.response) or f'; {_REFUSED[error.code]}'}"
        return f"{self.endpoint} answers {error.code}: {error.message}"
