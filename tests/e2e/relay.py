"""The plugin whose answerer is trained on prepared questions, as an installed distribution."""

from __future__ import annotations

from tests.e2e.duet import PLUGINS, Duet

PRESET = PLUGINS / "relay_method" / "presets" / "tiny.yaml"


class Relay(Duet):
    """Commands in an environment that has the plugin."""

    distribution, entry, preset = "relay-methods", "relay = relay_method.method:Relay", PRESET
