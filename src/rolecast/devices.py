"""Where a process computes."""

from __future__ import annotations

import os

import torch


def device() -> torch.device:
    """The GPU that torchrun numbered this process for, else the first one, else the CPU. CUDA_VISIBLE_DEVICES= hides GPUs."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
