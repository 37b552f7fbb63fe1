"""What is installed of what this package can use: its extras, as the installed metadata names them, and the one line that says what
is missing and how to get it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rolecast.errors import InputError

NAME = "rolecast"
CORE = "core"  # stands for the extra of what is always needed
# Packages that are imported under another name than they are installed, or that come with one that an extra names.
OWNERS = {
    "faiss": "faiss-cpu",
    "httpcore": "httpx",
    "kfp_server_api": "kfp",
    "markupsafe": "jinja2",
    "mlflow": "mlflow-skinny",
    "opentelemetry": "opentelemetry-sdk",
    "pydantic_core": "pydantic",
    "Stemmer": "pystemmer",
    "safetensors": "transformers",
    "starlette": "fastapi",
    "triton": "torch",  # where there is a GPU
    "urllib3": "minio",
    "yaml": "pyyaml",
}


class MissingPackageError(InputError):
    """A package is not installed. `part`: the extra of what was asked for, which is named if it has the package."""

    def __init__(self, package: str, part: str = "") -> None:
        super().__init__(f"{package} is not installed; {install(extra_of(package, part))}")
        self.package = package


@contextmanager
def needing(part: str = "") -> Iterator[None]:
    """Around what imports or runs a part: a package of ours that is missing is a `MissingPackageError`, with the outermost part's extra.

    A module that no extra brings is a fault of another kind and stays what it is.
    """
    try:
        yield
    except MissingPackageError as error:
        if not part:
            raise
        raise MissingPackageError(error.package, part) from error
    except ModuleNotFoundError as error:
        package = package_of(error.name or "")
        if package is None:
            raise
        raise MissingPackageError(package, part) from error


def extras() -> dict[str, list[str]]:
    """Packages by extra; `CORE` has those that are always needed."""
    found: dict[str, list[str]] = defaultdict(list)
    for requirement in importlib.metadata.requires(NAME) or []:
        name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
        for extra in re.findall(r"extra == ['\"]([\w-]+)['\"]", requirement) or [CORE]:
            found[extra].append(name)
    return found


def package_of(module: str) -> str | None:
    """The package that brings a module, if it is one that we name."""
    root = module.partition(".")[0]
    wanted = OWNERS.get(root, normal(root))
    return wanted if any(wanted == normal(name) for names in extras().values() for name in names) else None


def extra_of(package: str, part: str = "") -> str:
    """The part, if its extra has the package; else the smallest extra that has it; "" if all installations do."""
    holders = {extra: len(names) for extra, names in extras().items() if package in map(normal, names)}
    if part in holders:
        return part
    return "" if CORE in holders or not holders else min(holders, key=lambda extra: (holders[extra], extra))


def missing(names: list[str]) -> list[str]:
    return [name for name in names if version(name) is None]


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(extra: str) -> str:
    """The command that adds an extra: from the clone or the wheel that this installation came from, while that is there.

    The package is on no public index, so its name alone would not do.
    """
    pip = "pip install" if _first_pip() else f"{_short(Path(sys.executable))} -m pip install"
    wanted = f"[{extra}]" if extra else ""
    source, editable = _source()
    if source is None:
        return f"{pip} '.{wanted}' in a clone of the repository"
    return f"{pip} {'-e ' if editable else ''}'{_short(source)}{wanted}'"


def _source() -> tuple[Path | None, bool]:
    """What pip remembers: a folder or a wheel, and whether the folder's own files are what is imported."""
    try:
        text = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    origin = json.loads(text or "{}")
    url = urlsplit(origin.get("url", ""))
    path = Path(unquote(url.path))
    if url.scheme != "file" or not path.exists():
        return None, False
    return path, bool(origin.get("dir_info", {}).get("editable"))


def _first_pip() -> bool:
    """Whether `pip` in the shell is this interpreter's."""
    pip = shutil.which("pip")
    return pip is not None and Path(pip).parent == Path(sys.executable).parent


def _short(path: Path) -> str:
    """As the shell may be given it here; with a slash, since pip takes a bare name for a package's."""
    here = Path.cwd()
    if path == here:
        return "."
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
