"""Who we are to an S3 server: keys that are given, or keys that expire and are fetched for a workload's identity.

Settings are the variables that AWS's own tools read, so that what a cloud puts into a pod is understood: keys with or without a session
token; a web identity (EKS's IRSA, MinIO's and Ceph's STS), a token in a file, or of the API server, that is exchanged at an STS; or an agent on the node that
hands out keys (EKS Pod Identity). The client's own providers put the token into an address and lose what the server says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Lock
from typing import Protocol
from urllib.parse import urlencode
from xml.etree import ElementTree

from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider, StaticProvider
from urllib3 import BaseHTTPResponse, PoolManager
from urllib3.exceptions import HTTPError

from rolecast.errors import InputError
from rolecast.store.account_token import AccountToken
from rolecast.store.faults import CredentialsFault

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SESSION = "AWS_SESSION_TOKEN"
IDENTITY_FILE, ROLE, STS = "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ENDPOINT_URL_STS"
AUDIENCE = "ROLECAST_S3_AUDIENCE"  # of a token of the pod's account, where none is mounted
AGENT, AGENT_FILE = "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
SKEW = 240.0  # seconds between two clocks from which on a refusal is put down to them: servers take five minutes at least


class Opening(Protocol):
    """Gives the client for an address: proxies and certificates differ."""

    def __call__(self, url: str) -> PoolManager: ...


def provider_of(environ: Mapping[str, str], region: str, opening: Opening, what: str) -> Provider:
    """Given keys go before an identity, as with AWS's tools. `InputError` if there is neither; `what` needs them."""
    access_key, secret_key = (environ.get(name, "") for name in KEYS)
    if access_key and secret_key:
        return StaticProvider(access_key, secret_key, environ.get(SESSION) or None)
    if access_key or secret_key:
        raise InputError(f"{what} needs {KEYS[bool(access_key)]} in the environment beside {KEYS[not access_key]}")
    asked = AccountToken(environ.get(AUDIENCE, ""))
    if environ.get(IDENTITY_FILE) or (environ.get(AUDIENCE) and not environ.get(AGENT) and asked.mounted):
        sts = environ.get(STS) or f"https://sts.{region}.amazonaws.com"
        session = environ.get("AWS_ROLE_SESSION_NAME") or "rolecast"
        token = MountedToken(Path(environ[IDENTITY_FILE])) if environ.get(IDENTITY_FILE) else asked
        return WebIdentity(opening(sts), sts, token, environ.get(ROLE, ""), session)
    if environ.get(AGENT):
        return NodeAgent(opening(environ[AGENT]), environ[AGENT], environ.get(AGENT_FILE, ""))
    raise InputError(f"{what} needs {' and '.join(KEYS)} in the environment, or the identity of a workload ({IDENTITY_FILE} or {AGENT})")


class Expiring(Provider):
    """Keys that are fetched when there are none, or none that last; once for all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: Credentials | None = None

    def retrieve(self) -> Credentials:
        with self._lock:
            if self._held is None or self._held.is_expired():
                self._held = self.fetch()
            return self._held

    def fetch(self) -> Credentials:
        raise NotImplementedError


class Token(Protocol):
    """Of the workload's account. `CredentialsFault` where it cannot be had; as text it says where it is from."""

    def read(self) -> str: ...


class MountedToken:
    """The kubelet renews the file, so it is read anew."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __str__(self) -> str:
        return f"the token in {self._file}"

    def read(self) -> str:
        return _read(self._file, IDENTITY_FILE)


class WebIdentity(Expiring):
    """AssumeRoleWithWebIdentity: a token of the workload's account for keys of a role."""

    def __init__(self, http: PoolManager, sts: str, token: Token, role: str, session: str) -> None:
        super().__init__()
        self._http, self._sts, self._token, self._role, self._session = http, sts, token, role, session

    def fetch(self) -> Credentials:
        token = self._token.read()
        form = {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "WebIdentityToken": token, "RoleSessionName": self._session}
        if self._role:
            form["RoleArn"] = self._role
        # In the body: addresses stand in access logs.
        try:
            reply = self._http.request(
                "POST", self._sts, body=urlencode(form), headers={"Content-Type": "application/x-www-form-urlencoded"}, redirect=False
            )
        except HTTPError as error:
            raise CredentialsFault(f"{self._sts} cannot be reached ({type(error).__name__}); check {STS}", again=_passes(error)) from None
        if reply.status != 200:
            raise self._refused(reply, token)
        found = {element.tag.rpartition("}")[2]: element.text or "" for element in _xml(reply)}
        try:
            expires = datetime.fromisoformat(found["Expiration"])
            return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], expires)
        except (KeyError, ValueError):
            raise CredentialsFault(f"{self._sts} does not answer like an STS; check {STS}") from None

    def _refused(self, reply: BaseHTTPResponse, token: str) -> CredentialsFault:
        found = {element.tag.rpartition("}")[2]: element.text or "" for element in _xml(reply)}
        code, message = found.get("Code", ""), found.get("Message", "").replace(token, "…").strip()
        again = reply.status >= 500 or reply.status == 429 or code in ("IDPCommunicationError", "Throttling")
        said = f"{code or f'status {reply.status}'}{f': {message}' if message else ''}"
        hint = {
            "AccessDenied": f"; does the trust policy of {self._role or 'the role'} name this service account?",
            "InvalidIdentityToken": "; does the STS know the cluster as an identity provider, and the token's audience?",
            "ExpiredTokenException": f"; {self._token} is too old",
            "ExpiredToken": f"; {self._token} is too old",
        }.get(code, "")
        return CredentialsFault(f"{self._sts} gives no keys ({said}){clocks_apart(reply) or hint}", again=again)


class NodeAgent(Expiring):
    """Keys from an agent on the node, which knows the pod by a token that its kubelet mounts."""

    def __init__(self, http: PoolManager, url: str, file: str) -> None:
        super().__init__()
        self._http, self._url, self._file = http, url, file

    def fetch(self) -> Credentials:
        headers = {"Authorization": _read(Path(self._file), AGENT_FILE)} if self._file else {}
        try:
            reply = self._http.request("GET", self._url, headers=headers, redirect=False)
        except HTTPError as error:
            raise CredentialsFault(
                f"{self._url} cannot be reached ({type(error).__name__}); does the network policy let the pod out to it?",
                again=_passes(error),
            ) from None
        if reply.status != 200:
            raise CredentialsFault(f"{self._url} gives no keys (status {reply.status})", again=reply.status >= 500)
        try:
            found = json.loads(reply.data)
            expires = datetime.fromisoformat(found["Expiration"])
            return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["Token"], expires)
        except (KeyError, TypeError, ValueError):
            raise CredentialsFault(f"{self._url} does not answer with keys; check {AGENT}") from None


def clocks_apart(reply: BaseHTTPResponse) -> str | None:
    """What to say where this machine's clock and a server's are so far apart that no signature can be right."""
    try:
        theirs = parsedate_to_datetime(reply.headers["Date"])
    except (KeyError, TypeError, ValueError):
        return None
    apart = (datetime.now(UTC) - theirs.replace(tzinfo=theirs.tzinfo or UTC)).total_seconds()
    if abs(apart) < SKEW:
        return None
    return f"; this machine's clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the server's: set it (NTP)"


def _passes(error: HTTPError) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" not in str(error)


def _read(file: Path, variable: str) -> str:
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise CredentialsFault(f"{variable} names {file}, which cannot be read ({error.strerror}); is it mounted?") from None
    if not token:
        raise CredentialsFault(f"{variable} names {file}, which is empty", again=True)
    return token


def _xml(reply: BaseHTTPResponse) -> list[ElementTree.Element]:
    try:
        return list(ElementTree.fromstring(reply.data).iter())
    except ElementTree.ParseError:
        return []
