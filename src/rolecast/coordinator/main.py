"""`python -m rolecast.coordinator.main`: settings on stdin, secrets in the environment. Imports no torch."""

from __future__ import annotations

import json
import logging
import os
import sys

import uvicorn

from rolecast.coordinator.app import make_app
from rolecast.coordinator.checks import Rules
from rolecast.coordinator.leases import Coordinator
from rolecast.coordinator.tokens import release_key, worker_token
from rolecast.errors import InputError
from rolecast.leasing import Handshake
from rolecast.processes import die_with_parent, prepare_output
from rolecast.service.logs import configure_logging
from rolecast.service.server import ANY, listening


def main() -> None:
    die_with_parent()
    prepare_output()
    settings = json.load(sys.stdin)
    configure_logging("info")
    logging.getLogger("rolecast.access").setLevel("WARNING")  # every worker asks every second
    run, attempt = settings["run"], settings["attempt"]
    coordinator = Coordinator(
        run, attempt, Handshake(**settings["handshake"]), settings["lease_seconds"], settings["tries"], rules=Rules(**settings["rules"]),
        staleness=settings["staleness"],
    )  # fmt: skip
    worker = worker_token(release_key(os.environ), run, attempt, coordinator.session)
    app = make_app(coordinator, settings["config"], settings["stage"], settings["store"], os.environ["ROLECAST_COORDINATOR_TOKEN"], worker)
    try:
        sock = listening(ANY, settings["port"], "ROLECAST_COORDINATOR_PORT")
    except InputError as error:
        sys.exit(f"the coordinator {error}")
    with sock:
        uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[sock])


if __name__ == "__main__":
    main()
