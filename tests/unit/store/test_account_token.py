"""A token of the pod's own account, which a pod that can mount none asks the API server for."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from test_credentials import Answer, Start, keys, start  # noqa: F401 (a fixture)

from rolecast.errors import InputError, StoreError
from rolecast.store import account_token
from rolecast.store.s3 import S3Store

SUBJECT = base64.urlsafe_b64encode(json.dumps({"sub": "system:serviceaccount:team:rolecast-launcher"}).encode()).decode().rstrip("=")
OWN = f"head.{SUBJECT}.signature"
GIVEN = Answer(201, json.dumps({"status": {"token": "for-the-sts"}}).encode())


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "token").write_text(f"{OWN}\n")
    monkeypatch.setattr(account_token.AccountToken.__init__, "__defaults__", (tmp_path, "http://127.0.0.1:1"))
    return tmp_path


def store(monkeypatch: pytest.MonkeyPatch, mounted: Path, server: str, api: str, sts: str, **more: str) -> S3Store:
    monkeypatch.setattr(account_token.AccountToken.__init__, "__defaults__", (mounted, api))
    environ = {"ROLECAST_S3_ENDPOINT": server, "ROLECAST_S3_AUDIENCE": "sts.test", "AWS_ENDPOINT_URL_STS": sts, **more}
    return S3Store.from_environment("bucket", "runs", environ)


def test_a_token_is_asked_for_and_exchanged_each_time_keys_expire(start: Start, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    server, api, sts = start(Answer(200, b"data")), start(GIVEN), start(keys(1, 0), keys(2))
    found = store(monkeypatch, mounted, server.url, api.url, sts.url)
    assert [found.get("a"), found.get("b")] == [b"data", b"data"]
    assert [request.line for request in api.seen] == ["POST /api/v1/namespaces/team/serviceaccounts/rolecast-launcher/token"] * 2
    assert {request.headers["authorization"] for request in api.seen} == {f"Bearer {OWN}"}
    assert json.loads(api.seen[0].body)["spec"]["audiences"] == ["sts.test"]
    assert [parse_qs(request.body)["WebIdentityToken"] for request in sts.seen] == [["for-the-sts"]] * 2
    assert OWN not in "".join(request.body for request in sts.seen), "the API server's token is nobody else's to see"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            Answer(403, b"{}"),
            "account rolecast-launcher of namespace team may not have a token for sts.test: let it create serviceaccounts/token",
        ),
        (Answer(201, b"<html>"), "gives no token of account rolecast-launcher"),
        (Answer(404, b"{}"), "gives no token of account rolecast-launcher .status 404."),
    ],
)
def test_an_account_that_gets_no_token_is_told_in_a_line(
    start: Start, mounted: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, said: str  # noqa: F811
) -> None:  # fmt: skip
    server, api, sts = start(Answer(200, b"data")), start(answer), start(keys())
    with pytest.raises(StoreError, match=said) as raised:
        store(monkeypatch, mounted, server.url, api.url, sts.url).get("a")
    assert OWN not in str(raised.value)
    assert not sts.seen


def test_keys_and_a_mounted_token_go_before_one_that_is_asked_for(start: Start, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    server, api, sts = start(Answer(200, b"data")), start(GIVEN), start(keys())
    given = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "SECRET"}
    file = mounted / "for-sts"
    file.write_text("mounted")
    for more in (given, {"AWS_WEB_IDENTITY_TOKEN_FILE": str(file)}):
        assert store(monkeypatch, mounted, server.url, api.url, sts.url, **more).get("a") == b"data"
    assert not api.seen
    assert [parse_qs(request.body)["WebIdentityToken"] for request in sts.seen] == [["mounted"]]


def test_where_no_account_is_mounted_keys_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or the identity"):
        store(monkeypatch, tmp_path, "http://127.0.0.1:1", "http://127.0.0.1:1", "http://127.0.0.1:1")


def test_what_is_no_token_of_an_account_is_said(start: Start, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (mounted / "token").write_text("opaque")
    with pytest.raises(StoreError, match="is no token of a service account"):
        store(monkeypatch, mounted, start(Answer(200, b"")).url, start(GIVEN).url, start(keys()).url).get("a")
