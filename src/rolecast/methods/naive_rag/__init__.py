"""`naive_rag`: answers after one search with the question."""

from rolecast.methods.naive_rag.method import NaiveRag, NaiveRagConfig

__all__ = ["NaiveRag", "NaiveRagConfig"]
