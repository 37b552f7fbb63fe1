"""Where a process computes."""

from __future__ import annotations

import os

import torch

from rolecast.threads import cores


def device() -> torch.device:
    """The GPU that this rank is numbered for, else the first one, else the CPU. CUDA_VISIBLE_DEVICES= hides GPUs."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def count() -> tuple[int, str]:
    """How many processes can train side by side on this machine, and on what."""
    if torch.cuda.is_available():
        return torch.cuda.device_count(), "GPUs"
    return cores(), "cores"
