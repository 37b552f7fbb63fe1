"""A token of the pod's own account for an audience, asked of the API server as the kubelet asks for one that it mounts.

For pods that can mount none: steps of Kubeflow Pipelines, whose platform knows no projected volumes. The account needs the right to create
`serviceaccounts/token` of itself.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError

from rolecast.store.faults import CredentialsFault

MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # with the account's token for the API server
SERVER = "https://kubernetes.default.svc"
SECONDS = 3600  # that a token holds; it is exchanged at once


class AccountToken:
    """`audience`: what the STS asks of a token."""

    def __init__(self, audience: str, folder: Path = MOUNTED, server: str = SERVER) -> None:
        self._audience, self._folder, self._server = audience, folder, server

    def __str__(self) -> str:
        return f"the token for {self._audience} that {self._server} gave"

    @property
    def mounted(self) -> bool:
        """Whether the API server can be asked."""
        return (self._folder / "token").is_file()

    def read(self) -> str:
        own = (self._folder / "token").read_text().strip()
        namespace, account = _account(own)
        authority = self._folder / "ca.crt"
        http = PoolManager(retries=False, timeout=Timeout(connect=5.0, read=30.0), ca_certs=str(authority) if authority.is_file() else None)
        url = f"{self._server}/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [self._audience], "expirationSeconds": SECONDS},
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {own}", "Content-Type": "application/json"}
        try:
            reply = http.request("POST", url, body=json.dumps(body), headers=headers, redirect=False)
        except HTTPError as error:
            raise CredentialsFault(
                f"{self._server} cannot be reached ({type(error).__name__}) for a token of the account", again=True
            ) from None
        if reply.status == 403:
            raise CredentialsFault(
                f"account {account} of namespace {namespace} may not have a token for {self._audience}: "
                f"let it create serviceaccounts/token of itself, or give the store's keys in a Secret"
            )
        try:
            if reply.status != 201:
                raise ValueError
            return str(json.loads(reply.data)["status"]["token"])
        except (KeyError, TypeError, ValueError):
            again = reply.status >= 500 or reply.status == 429
            raise CredentialsFault(f"{self._server} gives no token of account {account} (status {reply.status})", again=again) from None


def _account(token: str) -> tuple[str, str]:
    """Namespace and name, from the token itself; a pod is told of neither."""
    try:
        claims = token.split(".")[1]
        subject = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["sub"]
        _, _, namespace, account = str(subject).split(":")
        return namespace, account
    except (IndexError, KeyError, ValueError):
        raise CredentialsFault(f"{MOUNTED / 'token'} is no token of a service account") from None
