"""What a service raises to say that it is not the request's fault."""

from __future__ import annotations

from rolecast.errors import RolecastError


class Overloaded(RolecastError):
    """More is waiting than the service takes on; the client should try again (503)."""
