"""FAISS, as it is set up here."""

from __future__ import annotations

import logging

logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it reports every build of itself that it tries to load
import faiss  # noqa: E402

# FAISS's default makes a batch of queries on a flat index no faster than one query at a time.
faiss.cvar.distance_compute_blas_threshold = 20
__all__ = ["faiss"]
