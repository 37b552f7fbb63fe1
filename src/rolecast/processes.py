"""Child processes that end with the process that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "ROLECAST_DIE_WITH_PARENT"  # the parent's pid, for a child that is to end with it


def die_with_parent() -> None:
    """If the parent asked for it, the kernel kills this process when the parent's thread that started it ends."""
    if sys.platform == "linux" and os.environ.get(PARENT):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(os.environ[PARENT]) and os.getppid() == 1:  # it was gone before the kernel knew
            sys.exit(1)
