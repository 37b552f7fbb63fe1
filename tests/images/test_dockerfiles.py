"""Rules for every image, read from the Dockerfile as text: none is built here; images/smoke.sh runs the built ones."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib

import pytest

from tests.images.dockerfiles import ALL, CUDA_PARTS, DOCKERFILE, IMAGES, PARTS, ROOT, STAGES, arguments, built, lock_of, locked, whole

LABELS = {"title", "description", "licenses", "version", "revision"}
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
TEXT = DOCKERFILE.read_text()
every = pytest.mark.parametrize("image", ALL)


def test_each_part_has_its_images() -> None:
    assert sorted(name for name, stage in STAGES.items() if stage.base == "runtime") == sorted(ALL)
    assert list(IMAGES.rglob("Dockerfile*")) == [DOCKERFILE]


@every
def test_runs_as_a_numeric_user_that_has_a_name(image: str) -> None:
    run = whole(image)
    assert run.all("USER")[-1] == "10001:10001"
    [made] = [command for command in run.all("RUN") if "useradd" in command]
    assert "groupadd --gid 10001 rolecast" in made
    assert "useradd --uid 10001 --gid 10001" in made


@every
def test_starts_the_command_without_a_shell(image: str) -> None:
    run = whole(image)
    assert [json.loads(rest) for rest in run.all("ENTRYPOINT")] == [["rolecast"]]
    assert not run.all("CMD")


@every
def test_is_labelled_with_its_version_and_commit(image: str) -> None:
    run = whole(image)
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', " ".join(run.all("LABEL"))))
    assert labels.keys() == LABELS
    assert labels["title"] == f"rolecast-{image.removesuffix('-cuda')}"
    assert (labels["version"], labels["revision"]) == ("${VERSION}", "${REVISION}")
    assert {"VERSION", "REVISION"} <= {*STAGES[image].all("ARG")}


@every
def test_a_new_commit_leaves_the_layer_with_the_packages_as_it_is(image: str) -> None:
    """What differs with every commit comes after it."""
    keys = [f"{keyword} {rest}" for keyword, rest in whole(image).instructions]
    packages = keys.index(f"COPY --from={image}-packages /opt/venv /opt/venv")
    assert packages < keys.index("COPY --from=project /staging/opt/venv /opt/venv") < keys.index("ARG REVISION")
    assert packages < keys.index("ARG VERSION")
    assert not set(whole(f"{image}-packages").sources) & set(STAGES["project"].sources)


def test_bases_are_arguments_with_a_tag() -> None:
    for stage in STAGES.values():
        assert stage.base in STAGES or re.fullmatch(r"[a-z0-9./-]+:[a-z0-9.-]*\d[a-z0-9.-]*", stage.base), stage.base
    assert "latest" not in TEXT
    given = [line for line in re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) if line not in STAGES]
    assert set(given) == {"${PYTHON_IMAGE}"}, "a release gives the base with its digest"


@every
def test_what_is_built_stays_behind(image: str) -> None:
    run = whole(image)
    assert not any("pip" in command for command in run.all("RUN"))
    assert not run.sources, "files of the tree belong to the project's wheel"
    assert [stage.name for stage in built(image)] == [f"{image}-packages", "project"]


def test_holds_no_secrets() -> None:
    names = set(re.findall(r"^ARG (\w+)", TEXT, re.MULTILINE)) | {name for stage in STAGES.values() for name in stage.environment}
    assert not [name for name in names if SECRET.search(name)]


@every
def test_a_read_only_root_is_enough(image: str) -> None:
    """What may be written lies in /tmp and /work, which are mounts."""
    environment = whole(image).environment
    assert environment["HOME"] == "/home/rolecast"
    assert environment["ROLECAST_WORKDIR"] == "/work"
    caches = {name: value for name, value in environment.items() if re.search(r"CACHE|_HOME$|_DIR$", name)}
    assert caches.keys() >= {"XDG_CACHE_HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"}
    assert all(value.startswith("/tmp/") for value in caches.values()), caches


@every
def test_installs_its_own_lock_and_nothing_unpinned(image: str) -> None:
    packages = STAGES[f"{image}-packages"]
    assert [ROOT / source for source in packages.sources] == [lock_of(image)]
    for stage in (whole(packages.name), STAGES["project"]):
        for command in re.findall(r"pip (?:--python \S+ )?install ([^&;]+)", " & ".join(stage.all("RUN"))):
            assert command.startswith("--require-hashes -r build.lock") or "--no-deps" in command, command
            # torch comes from an index that the builder chooses, the encoder at his wish; the wheel is ours.
            assert "--require-hashes -r " in command or "${TORCH_INDEX}" in command or "${ENCODER}" in command or "dist/*.whl" in command, (
                command
            )


@pytest.mark.parametrize("part", PARTS)
def test_torch_comes_from_an_index_that_can_be_chosen_at_the_version_of_the_lock(part: str) -> None:
    packages = whole(f"{part}-packages")
    pin = locked(lock_of(part)).get("torch")
    assert any(argument.startswith("TORCH_INDEX=") for argument in packages.all("ARG")) == (pin is not None)
    if pin is not None:  # another version there would bring PyPI's wheel after it
        [source] = STAGES["torch"].sources
        assert locked(ROOT / source)["torch"] == pin


def test_what_is_copied_is_sent_to_the_builder() -> None:
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for stage in STAGES.values():
        for source in stage.sources:
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, pattern) or pattern.startswith(f"{source}/") for pattern in admitted), source


def test_bake_builds_each_image() -> None:
    text = (ROOT / "docker-bake.hcl").read_text()
    targets = dict(re.findall(r'^target "([a-z_-]+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL))
    assert 'group "default" {\n  targets = ["cpu"]\n}' in text
    assert targets.keys() == {"_common", "cpu", "cuda"}
    assert 'dockerfile = "images/Dockerfile"' in targets["_common"]
    assert set(re.findall(r"^    (\w+) += \1$", targets["_common"], re.MULTILINE)) == set(arguments(TEXT))
    for group, parts, suffix in (("cpu", PARTS, ""), ("cuda", CUDA_PARTS, "-cuda")):
        said = dict(re.findall(r"^  (\w+) += (.*)$", targets[group], re.MULTILINE))
        assert json.loads(said["matrix"].removeprefix("{ part = ").removesuffix(" }")) == [*parts]
        assert said["name"] == said["target"] == (f'"${{part}}{suffix}"' if suffix else "part")
        assert said["tags"] == f'["${{REGISTRY}}/rolecast-${{part}}:${{TAG}}{suffix}"]'
        assert said["inherits"] == '["_common"]'


def test_the_version_is_the_project_s() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(r'variable "VERSION" \{\n  default = "(.+)"', (ROOT / "docker-bake.hcl").read_text())[1] == version  # type: ignore[index]
    assert arguments(TEXT)["VERSION"] == version
