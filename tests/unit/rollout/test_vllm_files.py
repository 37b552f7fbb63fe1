"""What vLLM's processes leave in the temporary directory goes with the process that started them. vLLM is a stand-in here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = """
import os, signal, tempfile
print(tempfile.gettempdir(), os.environ.get("TORCHINDUCTOR_CACHE_DIR"), flush=True)
open(tempfile.gettempdir() + "/vllm_dist_0123", "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""
MODULES = {
    "vllm": "__version__ = '0.32.0'",
    "vllm.engine": "",
    "vllm.engine.arg_utils": "AsyncEngineArgs = dict",
    "vllm.v1": "",
    "vllm.v1.engine": "",
    "vllm.v1.engine.logprobs": "class LogprobsProcessor:\n    def from_new_request(tokenizer, request): ...",
    "vllm.v1.engine.async_llm": f"""
import subprocess, sys
class AsyncLLM:
    @staticmethod
    def from_engine_args(arguments):
        core = subprocess.run([sys.executable, "-c", {CORE!r}], stdout=subprocess.PIPE, text=True)
        assert core.returncode == -9
        print(core.stdout.strip())
        if arguments:
            raise ValueError("no engine")
""",
}
STARTS = """
import os, sys
from contextlib import suppress
from rolecast.rollout.engines import vllm_api
from rolecast.scratch import own
with suppress(ValueError):
    vllm_api.start({"fails": True} if sys.argv[1] == "fails" else {})
print(own(), os.environ.get("TMPDIR"), *sorted(path.name for path in own().iterdir()))
"""


def started(folder: Path, how: str, temporary: Path) -> list[list[str]]:
    for name, text in MODULES.items():
        place = folder / "modules" / name.replace(".", "/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "__init__.py").write_text(text)
    temporary.mkdir(parents=True)
    path = os.pathsep.join([str(folder / "modules"), *sys.path])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "ROLECAST_", "TORCHINDUCTOR_"))}
    done = subprocess.run(
        [sys.executable, "-c", STARTS, how], env={**variables, "PYTHONPATH": path, "TMPDIR": str(temporary)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="rc") as folder:
        yield Path(folder)


@pytest.mark.parametrize("how", ["starts", "fails"])
def test_a_killed_engine_core_leaves_nothing_behind(how: str, tmp_path: Path, short: Path) -> None:
    temporary = short / "tmp"
    core, own = started(tmp_path, how, temporary)
    assert core == [own[0], f"{temporary}/torchinductor_{os.getuid()}"]
    assert own[1:] == [str(temporary), "vllm_dist_0123"]
    assert list(temporary.iterdir()) == []


def test_where_the_folder_is_too_deep_for_sockets_it_is_not_given(tmp_path: Path) -> None:
    temporary = tmp_path / ("deep" * 20)
    core, own = started(tmp_path, "starts", temporary)
    assert core == [str(temporary), "None"]
    assert own[1:] == [str(temporary)]
    assert [path.name for path in temporary.iterdir()] == ["vllm_dist_0123"]
