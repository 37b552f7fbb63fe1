"""The launchers by name. Each is imported when it is asked for: a step on this machine needs no Kubernetes client."""

from __future__ import annotations

from typing import Literal, get_args

from rolecast.errors import InputError
from rolecast.launching.launcher import Launcher

LauncherName = Literal["local", "pytorchjob", "trainjob"]


def make_launcher(name: str) -> Launcher:
    if name == "local":
        from rolecast.launching.local import LocalLauncher

        return LocalLauncher()
    if name in get_args(LauncherName):
        from rolecast.launching.cluster import KINDS, connect
        from rolecast.launching.kubernetes import KubernetesLauncher

        return KubernetesLauncher(connect(), KINDS[name])
    raise InputError(f"no launcher {name!r}; there are {', '.join(get_args(LauncherName))}")
