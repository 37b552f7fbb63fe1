"""Keys that expire, session tokens, private authorities, proxies and wrong clocks, against a local STS and S3 that answer as told."""

from __future__ import annotations

import logging
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rolecast.errors import InputError, StoreError
from rolecast.retries import Tries
from rolecast.store import s3
from rolecast.store.s3 import S3Store
from rolecast.store.transport import proxy_for

TOKEN = "token-of-the-account"
DENIED = "<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
MISSING = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(s3, "Tries", lambda patience: Tries(patience, lambda: sum(waits)))
    monkeypatch.setattr(s3, "time", SimpleNamespace(sleep=waits.append))
    return waits


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: str


@dataclass
class Server:
    """Answers as told, the last answer for good; keeps what it was asked."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    running = []

    def start(*answers: Answer, certificate: Path | None = None) -> Server:
        server = Server(answers=list(answers))

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode(errors="replace")
                server.seen.append(
                    Request(f"{self.command} {self.path}", {name.lower(): value for name, value in self.headers.items()}, body)
                )
                told = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                self.send_response_only(told.status)
                headers = {"Date": format_datetime(datetime.now(UTC), usegmt=True), "Content-Type": "application/xml"} | told.headers
                for name, value in {**headers, "Content-Length": str(len(told.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(told.body)

            do_GET = do_PUT = do_POST = answer  # noqa: N815

            def log_message(self, *args: Any) -> None: ...

        listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        running.append(listening)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        server.url = f"http{'s' if certificate else ''}://127.0.0.1:{listening.server_port}"
        return server

    yield start
    for listening in running:
        listening.shutdown()
        listening.server_close()


def keys(number: int = 1, lasting: float = 3600) -> Answer:
    expires = (datetime.now(UTC) + timedelta(seconds=lasting)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Answer(
        body=f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
        <Credentials><AccessKeyId>KEY{number}</AccessKeyId><SecretAccessKey>SECRET{number}</SecretAccessKey>
        <SessionToken>SESSION{number}</SessionToken><Expiration>{expires}</Expiration></Credentials>
        </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode()
    )


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


def by_identity(server: Server, sts: Server, token: Path, **more: str) -> S3Store:
    return S3Store.from_environment(
        "bucket", "runs",
        {"ROLECAST_S3_ENDPOINT": server.url, "AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ROLE_ARN": "arn:role",
         "AWS_ENDPOINT_URL_STS": sts.url, **more},
    )  # fmt: skip


def fault(call: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as raised:
        call()
    return str(raised.value)


def test_a_workloads_token_is_exchanged_for_keys_once(start: Start, token: Path) -> None:
    server, sts = start(Answer(200, b"data")), start(keys())
    store = by_identity(server, sts, token)
    assert [store.get("a"), store.get("b")] == [b"data", b"data"]
    [asked] = sts.seen
    assert parse_qs(asked.body) == {
        "Action": ["AssumeRoleWithWebIdentity"],
        "Version": ["2011-06-15"],
        "WebIdentityToken": [TOKEN],
        "RoleArn": ["arn:role"],
        "RoleSessionName": ["rolecast"],
    }
    assert asked.line == "POST /", "a token in an address is in every access log"
    assert {request.headers["x-amz-security-token"] for request in server.seen} == {"SESSION1"}
    assert all("KEY1/" in request.headers["authorization"] for request in server.seen)


def test_a_conditional_put_carries_the_session_too(start: Start, token: Path) -> None:
    server = start(Answer(200))
    assert by_identity(server, start(keys()), token).put("record", b"x", absent=True)
    assert "X-Amz-Security-Token=SESSION1" in server.seen[-1].line


def test_keys_that_expire_are_fetched_again_with_the_token_that_lies_there_then(start: Start, token: Path) -> None:
    server, sts = start(Answer(200, b"data")), start(keys(1, lasting=5), keys(2))
    store = by_identity(server, sts, token)
    store.get("a")
    token.write_text("renewed")
    store.get("a")
    assert [parse_qs(request.body)["WebIdentityToken"] for request in sts.seen] == [[TOKEN], ["renewed"]]
    assert [request.headers["x-amz-security-token"] for request in server.seen] == ["SESSION1", "SESSION2"]


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        ("AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity", "does the trust policy of arn:role name this service account?"),
        ("InvalidIdentityToken", f"no provider for {TOKEN}", "does the STS know the cluster as an identity provider"),
        ("ExpiredTokenException", "Token expired", "is too old"),
        ("Unheard", "what the server says", "what the server says"),
    ],
)  # fmt: skip
def test_what_the_sts_refuses_is_told_as_it_is_and_at_once(
    start: Start, token: Path, slept: list[float], caplog: pytest.LogCaptureFixture, code: str, message: str, told: str
) -> None:
    caplog.set_level(logging.DEBUG)
    sts = start(Answer(403, DENIED.format(code=code, message=message).encode()))
    line = fault(lambda: by_identity(start(Answer()), sts, token).get("a"))
    assert line.startswith(f"s3://bucket: {sts.url} gives no keys ({code}")
    assert told in line
    assert TOKEN not in line + caplog.text
    assert slept == []


def test_an_sts_that_is_away_for_a_while_is_waited_for(start: Start, token: Path, slept: list[float]) -> None:
    sts = start(Answer(503), Answer(400, DENIED.format(code="IDPCommunicationError", message="later").encode()), keys())
    assert by_identity(start(Answer(200, b"data")), sts, token).get("a") == b"data"
    assert len(slept) == 2


def test_an_sts_that_cannot_be_reached_is_named_and_not_the_store(start: Start, token: Path) -> None:
    server = start(Answer())
    line = fault(lambda: by_identity(server, Server("http://127.0.0.1:9"), token).get("a"))
    assert line == "s3://bucket: http://127.0.0.1:9 cannot be reached (NewConnectionError); check AWS_ENDPOINT_URL_STS"
    assert server.seen == []


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"hello", b"<a><Expiration>never</Expiration></a>"])
def test_what_is_no_sts_is_said(start: Start, token: Path, body: bytes) -> None:
    assert "does not answer like an STS" in fault(lambda: by_identity(start(Answer()), start(Answer(200, body)), token).get("a"))


def test_a_token_that_is_not_mounted_is_said(start: Start, tmp_path: Path) -> None:
    line = fault(lambda: by_identity(start(Answer()), start(keys()), tmp_path / "none").get("a"))
    assert "AWS_WEB_IDENTITY_TOKEN_FILE names" in line
    assert line.endswith("is it mounted?")


def test_without_a_named_sts_it_is_the_regions(start: Start, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(s3, "pool_for", lambda url, environ, size, make=s3.pool_for: asked.append(url) or make(url, environ, size))
    environ = {"ROLECAST_S3_ENDPOINT": "http://host", "ROLECAST_S3_REGION": "eu-west-1", "AWS_WEB_IDENTITY_TOKEN_FILE": str(token)}
    S3Store.from_environment("bucket", "", environ)
    assert asked == ["https://sts.eu-west-1.amazonaws.com", "http://host"]


def test_an_agent_on_the_node_gives_keys(start: Start, token: Path) -> None:
    body = b'{"AccessKeyId": "KEY", "SecretAccessKey": "S", "Token": "SESSION", "Expiration": "2099-01-01T00:00:00Z"}'
    server, agent = start(Answer(200, b"data")), start(Answer(200, body))
    environ = {
        "ROLECAST_S3_ENDPOINT": server.url,
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent.url}/v1/credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
    }
    assert S3Store.from_environment("bucket", "", environ).get("a") == b"data"
    assert (agent.seen[0].line, agent.seen[0].headers["authorization"]) == ("GET /v1/credentials", TOKEN)
    assert server.seen[0].headers["x-amz-security-token"] == "SESSION"
    agent.answers[:] = [Answer(404)]
    assert "gives no keys (status 404)" in fault(lambda: S3Store.from_environment("bucket", "", environ).get("a"))


def test_given_keys_go_before_an_identity_and_may_have_a_session(start: Start, token: Path) -> None:
    server, sts = start(Answer(200, b"data")), start(keys())
    given = {"AWS_ACCESS_KEY_ID": "MINE", "AWS_SECRET_ACCESS_KEY": "x"}
    by_identity(server, sts, token, **given, AWS_SESSION_TOKEN="OURS").get("a")
    by_identity(server, sts, token, **given).get("a")
    assert sts.seen == []
    assert [request.headers.get("x-amz-security-token") for request in server.seen] == ["OURS", None]
    assert all("MINE/" in request.headers["authorization"] for request in server.seen)


@pytest.mark.parametrize(
    ("given", "lacking"), [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")]
)
def test_half_a_pair_of_keys_is_refused(given: str, lacking: str) -> None:
    with pytest.raises(InputError, match=f"s3://bucket needs {lacking} in the environment beside {given}"):
        S3Store.from_environment("bucket", "", {"ROLECAST_S3_ENDPOINT": "http://host", given: "x", "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"})


def test_neither_keys_nor_identity_is_refused() -> None:
    with pytest.raises(InputError, match=r"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or the identity"):
        S3Store.from_environment("bucket", "", {"ROLECAST_S3_ENDPOINT": "http://host"})


def refusing(code: str, apart: float = 0.0) -> Answer:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=apart), usegmt=True)
    return Answer(403, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode(), {"Date": date})


@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "AccessDenied", "RequestTimeTooSkewed"])
@pytest.mark.parametrize(("apart", "how"), [(3600, "behind"), (-3600, "ahead of")])
def test_a_wrong_clock_is_no_wrong_key(start: Start, code: str, apart: float, how: str) -> None:
    line = fault(lambda: S3Store(start(refusing(code, apart)).url, "bucket", "", "key", "secret").get("a"))
    assert re.search(rf"; this machine's clock is (3[56]\d\d) s {how} the server's: set it \(NTP\)$", line), line
    assert "AWS_" not in line


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"),
        ("AccessDenied", "their rights"),
        ("ExpiredToken", "the session is over"),
        ("InvalidToken", "AWS_SESSION_TOKEN"),
        ("AuthorizationHeaderMalformed", "ROLECAST_S3_REGION"),
    ],
)
def test_a_refusal_says_what_to_check(start: Start, slept: list[float], code: str, check: str) -> None:
    line = fault(lambda: S3Store(start(refusing(code, 60)).url, "bucket", "", "key", "secret").get("a"))
    assert f"refuses the credentials ({code})" in line
    assert check in line
    assert "clock" not in line
    assert slept == []


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private authority's certificate, and a server's with its key."""
    folder = tmp_path_factory.mktemp("ca")
    now = datetime.now(UTC)

    def certificate(name: str, issuer: str, key: Any, signed_by: Any, ca: bool) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .sign(signed_by, hashes.SHA256())
        )

    ours, theirs = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.crt").write_bytes(certificate("ca", "ca", ours, ours, True).public_bytes(serialization.Encoding.PEM))
    secret = theirs.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    shown = certificate("s3", "ca", theirs, ours, False).public_bytes(serialization.Encoding.PEM)
    (folder / "server.pem").write_bytes(secret + shown)
    return folder / "ca.crt", folder / "server.pem"


def test_a_private_authority_is_named_by_a_file(start: Start, token: Path, authority: tuple[Path, Path], slept: list[float]) -> None:
    ca, certificate = authority
    server, sts = start(Answer(200, b"data"), certificate=certificate), start(keys(), certificate=certificate)
    assert by_identity(server, sts, token, AWS_CA_BUNDLE=str(ca)).get("a") == b"data"
    given = {"ROLECAST_S3_ENDPOINT": server.url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    line = fault(lambda: S3Store.from_environment("bucket", "", given).get("a"))
    assert line == f"s3://bucket: {server.url} shows a certificate that is not trusted; name its authority's in AWS_CA_BUNDLE"
    assert slept == [], "it does not pass by waiting"


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_bundle_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    bundle = tmp_path / "ca.crt"
    if content:
        bundle.write_text(content)
    given = {"ROLECAST_S3_ENDPOINT": "https://h", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_CA_BUNDLE": str(bundle)}
    with pytest.raises(InputError, match=r"AWS_CA_BUNDLE names .*; name a file of certificates in PEM"):
        S3Store.from_environment("bucket", "", given)


def test_a_proxy_is_asked_unless_the_host_is_excepted(start: Start) -> None:
    proxy, server = start(Answer(200, b"by proxy")), start(Answer(200, b"straight"))
    given = {
        "ROLECAST_S3_ENDPOINT": server.url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
        "HTTP_PROXY": proxy.url.replace("//", "//me:proxy-password@"),
    }  # fmt: skip
    assert S3Store.from_environment("bucket", "", given).get("a") == b"by proxy"
    assert proxy.seen[0].line.startswith(f"GET {server.url}/bucket/a")
    assert proxy.seen[0].headers["proxy-authorization"].startswith("Basic ")
    assert S3Store.from_environment("bucket", "", {**given, "NO_PROXY": "127.0.0.0/8"}).get("a") == b"straight"
    line = fault(lambda: S3Store.from_environment("bucket", "", {**given, "HTTP_PROXY": "http://me:proxy-password@127.0.0.1:9"}).get("a"))
    assert "through the proxy; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY" in line
    assert "proxy-password" not in line
    with pytest.raises(InputError, match="the proxy for S3 has no address") as raised:
        S3Store.from_environment("bucket", "", {**given, "HTTP_PROXY": "proxy-password@nowhere"})
    assert "proxy-password" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "exceptions", "proxied"),
    [
        ("https://s3.test", "", True),
        ("http://s3.test", "", False),  # only HTTPS_PROXY is set
        ("https://s3.test", "s3.test", False),
        ("https://s3.test:9000", ".test", False),
        ("https://mys3.test", "other.test, s3.test", True),
        ("https://s3.test", "*", False),
        ("https://10.1.2.3:9000", "10.0.0.0/8", False),
        ("https://11.1.2.3", "10.0.0.0/8", True),
        ("https://[fd00::1]:9000", "fd00::/8", False),
    ],
)
def test_which_addresses_a_proxy_is_asked_for(url: str, exceptions: str, proxied: bool) -> None:
    found = proxy_for(url, {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": exceptions})
    assert found == ("http://proxy:3128" if proxied else None)
