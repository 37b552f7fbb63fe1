"""`search_o1`: searches inside its reasoning; another call condenses what was found before it enters."""

from rolecast.methods.search_o1.method import SearchO1, SearchO1Config

__all__ = ["SearchO1", "SearchO1Config"]
