"""Search-R1, the monolithic baseline."""

from rolecast.methods.search_r1.method import SearchR1, SearchR1Config

__all__ = ["SearchR1", "SearchR1Config"]
