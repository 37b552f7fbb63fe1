"""Rules for every Dockerfile, read as text: no image is built here; images/smoke.sh runs the built ones."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.images.dockerfiles import ALL, CPU, CUDA, IMAGES, PARTS, ROOT, arguments, locked, stages

LABELS = {"title", "description", "licenses", "version", "revision"}
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
every = pytest.mark.parametrize("file", ALL, ids=lambda file: f"{file.parent.name}/{file.name}")


def test_each_part_has_its_images() -> None:
    assert sorted(IMAGES.glob("*/Dockerfile*")) == sorted(ALL)


@every
def test_runs_as_a_numeric_user_that_has_a_name(file: Path) -> None:
    run = stages(file.read_text())[-1]
    assert run.all("USER")[-1] == "10001:10001"
    [made] = [command for command in run.all("RUN") if "useradd" in command]
    assert "groupadd --gid 10001 rolecast" in made
    assert "useradd --uid 10001 --gid 10001" in made


@every
def test_starts_the_command_without_a_shell(file: Path) -> None:
    run = stages(file.read_text())[-1]
    assert [json.loads(rest) for rest in run.all("ENTRYPOINT")] == [["rolecast"]]
    assert not run.all("CMD")


@every
def test_is_labelled_with_its_version_and_commit(file: Path) -> None:
    run = stages(file.read_text())[-1]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', " ".join(run.all("LABEL"))))
    assert labels.keys() == LABELS
    assert labels["title"] == f"rolecast-{file.parent.name}"
    assert (labels["version"], labels["revision"]) == ("${VERSION}", "${REVISION}")
    assert {"VERSION", "REVISION"} <= {argument.partition("=")[0] for argument in run.all("ARG")}


@every
def test_bases_are_arguments_with_a_tag(file: Path) -> None:
    text = file.read_text()
    found = stages(text)
    names = {stage.name for stage in found}
    for stage in found:
        assert stage.base in names or re.fullmatch(r"[a-z0-9./-]+:[a-z0-9.-]*\d[a-z0-9.-]*", stage.base), stage.base
    assert "latest" not in text
    assert re.findall(r"^FROM (\S+)$", text, re.MULTILINE) == ["${PYTHON_IMAGE}"], "a release gives the base with its digest"


@every
def test_what_is_built_stays_behind(file: Path) -> None:
    *build, run = stages(file.read_text())
    assert build
    assert not any("pip" in command for command in run.all("RUN"))
    assert all(copy.startswith("--from=") for copy in run.all("COPY")), "files of the tree belong to the project's wheel"


@every
def test_holds_no_secrets(file: Path) -> None:
    text = file.read_text()
    names = set(arguments(text)) | {name for stage in stages(text) for name in stage.environment}
    assert not [name for name in names if SECRET.search(name)]


@every
def test_a_read_only_root_is_enough(file: Path) -> None:
    """What may be written lies in /tmp and /work, which are mounts."""
    environment = stages(file.read_text())[-1].environment
    assert environment["HOME"] == "/home/rolecast"
    assert environment["ROLECAST_WORKDIR"] == "/work"
    caches = {name: value for name, value in environment.items() if re.search(r"CACHE|_HOME$|_DIR$", name)}
    assert caches.keys() >= {"XDG_CACHE_HOME"}
    assert all(value.startswith("/tmp/") for value in caches.values()), caches
    if "torch" in locked(file.parent / "requirements.lock"):
        assert caches.keys() >= {"HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"}


@every
def test_installs_its_own_lock_and_nothing_unpinned(file: Path) -> None:
    text = file.read_text()
    lock = "requirements-cuda.lock" if file in CUDA else "requirements.lock"
    assert f"COPY images/{file.parent.name}/{lock} requirements.lock" in text
    for command in re.findall(r"pip (?:--python \S+ )?install ([^&;\n]+)", text.replace("\\\n", " ")):
        assert command.startswith("-r build.lock") or "--no-deps" in command, command


@pytest.mark.parametrize("file", CPU, ids=lambda file: file.parent.name)
def test_torch_comes_from_an_index_that_can_be_chosen(file: Path) -> None:
    assert ("TORCH_INDEX" in arguments(file.read_text())) == ("torch" in locked(file.parent / "requirements.lock"))


@every
def test_what_is_copied_is_sent_to_the_builder(file: Path) -> None:
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = [
        source
        for stage in stages(file.read_text())
        for copy in stage.all("COPY")
        if not copy.startswith("--from=")
        for source in copy.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) or pattern.startswith(f"{source}/") for pattern in admitted), source


def test_bake_builds_each_image() -> None:
    text = (ROOT / "docker-bake.hcl").read_text()
    targets = dict(re.findall(r'^target "([a-z_-]+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL))
    groups = {name: json.loads(members) for name, members in re.findall(r'group "(\w+)" \{\s+targets = (\[.*?\])', text)}
    assert groups == {"default": ["cpu"], "cpu": [*PARTS], "cuda": [f"{file.parent.name}-cuda" for file in CUDA]}
    for name in groups["cpu"] + groups["cuda"]:
        part, suffix = name.removesuffix("-cuda"), "-cuda" if name.endswith("-cuda") else ""
        file = f"images/{part}/Dockerfile{suffix.replace('-', '.')}"
        assert f'dockerfile = "{file}"' in targets[name]
        assert f'"${{REGISTRY}}/rolecast-{part}:${{TAG}}{suffix}"' in targets[name]
        given = set(re.findall(r"^    (\w+) += \1$", targets[name] + targets["_common"], re.MULTILINE))
        assert given == set(arguments((ROOT / file).read_text()))


def test_the_version_is_the_project_s() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(r'variable "VERSION" \{\n  default = "(.+)"', (ROOT / "docker-bake.hcl").read_text())[1] == version  # type: ignore[index]
    assert {arguments(file.read_text())["VERSION"] for file in ALL} == {version}
