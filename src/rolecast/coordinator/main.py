"""`python -m rolecast.coordinator.main`: settings on stdin, the learner's token in the environment. Imports no torch."""

from __future__ import annotations

import json
import os
import sys

import uvicorn

from rolecast.coordinator.app import make_app
from rolecast.coordinator.leases import Coordinator, Handshake
from rolecast.processes import die_with_parent
from rolecast.service.logs import configure_logging


def main() -> None:
    die_with_parent()
    settings = json.load(sys.stdin)
    configure_logging("info")
    coordinator = Coordinator(
        settings["run"], settings["attempt"], Handshake(**settings["handshake"]), settings["lease_seconds"], settings["tries"]
    )
    app = make_app(coordinator, settings["config"], settings["stage"], settings["store"], os.environ["ROLECAST_COORDINATOR_TOKEN"])
    uvicorn.run(app, host="0.0.0.0", port=settings["port"], log_config=None, access_log=False)


if __name__ == "__main__":
    main()
