"""Signals: the first one ends in one line, a second Ctrl-C at once, and a stage takes note of them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rolecast.errors import Interrupted
from rolecast.learner.ranks import ALONE
from rolecast.signals import Stopped, handled, signals_raise
from rolecast.stages.stopping import Stopping, stopping

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("number", ALL)
def test_a_signal_raises_once_and_what_was_there_before_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as caught, signals_raise():
        os.kill(os.getpid(), number)
    assert (caught.value.number, caught.value.code) == (number, 128 + number)
    assert signal.getsignal(number) == before


def test_a_second_sigterm_does_not_disturb_the_end_and_a_second_ctrl_c_is_the_end() -> None:
    code = """
import os, signal
from rolecast.signals import Stopped, signals_raise
with signals_raise():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Stopped:
        os.kill(os.getpid(), signal.SIGTERM)
        print("saved", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        print("not said")
"""
    done = process(code)
    assert (done.returncode, done.stdout) == (130, "saved\n")
    assert done.stderr == "rolecast: ended at once; what was not saved yet is lost\n"


def test_a_signal_goes_through_an_event_loop() -> None:
    code = """
import asyncio, os, signal
from rolecast.signals import Stopped, signals_raise
async def wait():
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
    await asyncio.sleep(5)
with signals_raise():
    asyncio.run(wait())
"""
    done = process(code)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    code = "import os, signal; from rolecast.signals import signals_raise\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += "with signals_raise():\n    os.kill(os.getpid(), signal.SIGINT)\n    print('goes on')"
    assert process(code).stdout == "goes on\n"


def test_other_threads_change_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        with handled(lambda number, frame: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("number", ALL)
def test_a_stage_takes_note_of_the_first_signal(number: signal.Signals) -> None:
    with stopping(ALONE) as stop:
        stop.leave("nothing was said")
        assert stop.asked() == 0
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked() == number
        with pytest.raises(Interrupted, match="saved") as caught:
            stop.leave("saved")
    assert caught.value.exit_code == 128 + number


def test_a_second_ctrl_c_ends_a_stage_at_once() -> None:
    code = """
import os, signal
from rolecast.learner.ranks import ALONE
from rolecast.stages.stopping import stopping
with stopping(ALONE):
    os.kill(os.getpid(), signal.SIGINT)
    print("goes on", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("not said")
"""
    done = process(code)
    assert (done.returncode, done.stdout) == (130, "goes on\n")
    assert done.stderr.splitlines() == [
        "told to end: saving at the end of this step; again to stop now",
        "rolecast: ended at once; what was not saved yet is lost",
    ]


def test_a_second_sigterm_ends_a_stage_unless_it_is_the_first_one_again() -> None:
    code = """
import os, signal, time
from rolecast import signals
from rolecast.learner.ranks import ALONE
from rolecast.stages.stopping import stopping
with stopping(ALONE):
    for said in ("told", "on another way"):
        os.kill(os.getpid(), signal.SIGTERM)
        print(said, flush=True)
    time.sleep(signals.TWICE)
    os.kill(os.getpid(), signal.SIGTERM)
    print("not said")
"""
    done = process(code)
    assert (done.returncode, done.stdout) == (143, "told\non another way\n")
    assert done.stderr.count("told to end: saving") == 1


def test_one_rank_says_that_it_is_saved(capfd: pytest.CaptureFixture[str]) -> None:
    class Second:
        first = False

        def gather(self, value: int) -> list[int]:
            return [value]

    stop = Stopping(Second())  # type: ignore[arg-type]
    stop.tell()
    assert stop.asked() == signal.SIGTERM
    assert capfd.readouterr().err == ""


def test_every_rank_ends_though_one_was_told() -> None:
    class Two:
        def gather(self, value: int) -> list[int]:
            return [value, signal.SIGTERM]

    assert Stopping(Two()).asked() == signal.SIGTERM  # type: ignore[arg-type]


def test_a_terminal_that_is_closed_ends_a_stage_that_saves_and_may_print_meanwhile(tmp_path: Path) -> None:
    code = f"""
import os, signal, time
from pathlib import Path
from rolecast.errors import Interrupted
from rolecast.learner.ranks import ALONE
from rolecast.stages.stopping import stopping
with stopping(ALONE) as stop:
    print("ready", flush=True)
    while not stop.asked():
        time.sleep(0.01)
    print("a line for nobody", flush=True)
    Path({str(tmp_path / "saved")!r}).write_text("1")
    try:
        stop.leave("saved")
    except Interrupted as told:
        os._exit(told.exit_code)
"""
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", code])
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGHUP
    assert (tmp_path / "saved").exists()
