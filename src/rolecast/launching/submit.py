"""Submits the compiled pipeline to a Kubeflow Pipelines server."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import io
import json
import os
import urllib.error
import urllib.request
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from rolecast.errors import InputError, RolecastError
from rolecast.launching.local_pipeline import write_pipeline
from rolecast.scratch import scratch

TOKEN = "ROLECAST_KFP_TOKEN"
HOST = "ROLECAST_KFP_HOST"


@dataclass(frozen=True, slots=True)
class Submission:
    run_id: str
    url: str


def submit(
    host: str | None,
    arguments: Mapping[str, Any],
    pipeline: Any,
    *,
    name: str,
    experiment: str = "rolecast",
    namespace: str | None = None,
    service_account: str | None = None,
) -> Submission:
    """Starts one run of a pipeline (of `rolecast_pipelines`) and returns at once. The token comes from the environment only, so that no process list shows it."""
    import kfp
    from kfp_server_api.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    if not host:
        raise InputError(f"no Kubeflow Pipelines server: give --host or set {HOST}")
    if not host.startswith(("http://", "https://")):
        raise InputError(f"host {host}: give a URL with http:// or https://")
    if "@" in host.partition("://")[2].partition("/")[0]:
        raise InputError(f"--host holds credentials, which logs would show; leave them out and set {TOKEN}")
    host, token = host.rstrip("/"), os.environ.get(TOKEN) or None
    _check_server(host, token)
    with scratch("package") as folder, warnings.catch_warnings(), redirect_stdout(io.StringIO()):  # kfp prints links
        warnings.simplefilter("ignore")
        package = folder / "pipeline.yaml"
        write_pipeline(package, pipeline)
        try:
            client = kfp.Client(host=host, existing_token=token, **({"namespace": namespace} if namespace else {}))
            run = client.create_run_from_pipeline_package(
                str(package),
                arguments=dict(arguments),
                run_name=name,
                experiment_name=experiment,
                namespace=namespace,
                service_account=service_account,
            )
        except ApiException as error:
            raise RolecastError(f"{host} refused the run: HTTP {error.status} {_message(error.body)}{_hint(error.status)}") from None
        except HTTPError as error:
            raise RolecastError(
                f"{host} went away while the run was submitted ({error.__class__.__name__}); look there before trying again"
            ) from None
    return Submission(run.run_id, f"{host}/#/runs/details/{run.run_id}")


def _check_server(host: str, token: str | None) -> None:
    """kfp.Client tries for half a minute and then says little; one request tells what is wrong."""
    request = urllib.request.Request(f"{host}/apis/v2beta1/healthz", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            json.load(reply)
    except urllib.error.HTTPError as error:
        raise RolecastError(f"{host} answers HTTP {error.code}{_hint(error.code)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error.__class__.__name__
        raise RolecastError(f"{host} is no Kubeflow Pipelines server that can be reached ({reason}); is a port-forward running?") from None


def _hint(status: int) -> str:
    return {
        401: f"; set {TOKEN} to a valid token",
        403: f"; {TOKEN} has no right to this, or --namespace names another profile",
        404: "; is this the address of Kubeflow Pipelines 2?",
    }.get(status, "")


def _message(body: Any) -> str:
    try:
        return str(json.loads(body)["message"])[:300]
    except (TypeError, ValueError, KeyError):
        return ""
