"""Every part does one small real thing with the packages of its extra alone, and names the extra where a package is missing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from tests.extras.installation import EXTRAS, MODELS, ROOT, Installation
from tests.weed import S3Server, free_ports

Make = Callable[..., Installation]
CONFIG = """
name: tiny
threads: 1
method: {name: decor, prompts: compact, max_tokens: 16, memory_tokens: 128, condenser: extractive}
model: {max_context: 256, scratch: {hidden: 32, layers: 2, heads: 2, head_dim: 16, feed_forward: 64}}
data: {world: {entities: {train: 150, dev: 60, test: 90}, questions: {train: 60, dev: 8, test: 16}}}
stages: {sft: {steps: 2, batch: 4}, rl: {steps: 0, dev: 2}}
eval: {n: 4, bootstrap: 100}
"""
# In no environment of ours: vllm wants a torch of its own (tests/contract/test_vllm.py tries it), and the clients of track, which are a service's,
# are stood in for (tests/unit/stages/test_trackers.py).
ELSEWHERE = ("vllm", "track")
QUESTION = "What is the twin of Bak Bam?"
CORPUS = [{"id": f"p{n}", "title": f"Town {n}", "text": f"Town {n} lies on river {n}."} for n in range(8)]
# A command that needs the part, with the arguments that bring it to where the package is needed.
NEEDING = {
    "ask --run {run}": ("agent", "Who?"),
    "agent serve {run}": ("agent", ""),
    "demo --run new": ("local", ""),
    "pipeline run --local --config {config} --run new": ("local", ""),
    "pipeline compile --out p.yaml": ("control", ""),
    "pipeline submit --config {config} --run s3://b/r --host http://localhost:1 --launcher local": ("control", ""),
    "index build --corpus {corpus} --out ix --kind bm25": ("retriever", ""),
    "index build --corpus {corpus} --out ix --kind dense": ("retriever", ""),
    "retriever serve --index {run}/index": ("retriever", ""),
    "judge serve": ("judge", ""),
    "rollout serve --coordinator-url http://a --retriever-url http://b --judge-url http://c": ("rollout", ""),
    "run create new --config {config}": ("train", ""),
    "train {run} sft": ("train", ""),
    "sft {run}": ("train", ""),
    "rl {run}": ("train", ""),
    "eval {run}": ("train", ""),
    "export {run}": ("train", ""),
    "plan {config}": ("train", ""),
    "report s3://bucket/runs/a": ("s3", ""),
    "data convert {parquet} --out converted": ("convert", ""),
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    def installed(extra: str, besides: frozenset[str] = frozenset()) -> Installation:
        return Installation(tmp_path_factory.mktemp(extra or "core"), extra, besides).make()

    return installed


@pytest.fixture(scope="module")
def core(make: Make) -> Installation:
    return make("")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"id": "1", "question": "Who?", "golden_answers": ["x"]}]), path.parent / "q.parquet"
    )
    (path.parent / "config.yaml").write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def run(make: Make, corpus: Path) -> Path:
    """What extra `train` alone makes of a config: world, index, a model of SFT and one of RL, an evaluation, a report."""
    train = make("train")
    train.rolecast("sft", "run", "--config", str(corpus.with_name("config.yaml")))
    train.rolecast("rl", "run")
    train.rolecast("eval", "run", "--stage", "sft")
    train.rolecast("report", "run")
    return train.folder / "run"


def test_train(run: Path) -> None:
    assert (run / "sft" / "model" / "manifest.json").exists()
    assert json.loads((run / "summary.json").read_text())["stages"]["sft"]["n"] == 4


def test_agent(make: Make, run: Path) -> None:
    agent = make("agent")
    assert agent.rolecast("ask", QUESTION, "--run", str(run)).splitlines()[-1].startswith("answer:")
    [port] = free_ports(1)
    with agent.serving("agent", "serve", str(run), "--host", "127.0.0.1", "--port", str(port)):
        url = f"http://127.0.0.1:{port}"
        ready(url)
        body = {"messages": [{"role": "user", "content": QUESTION}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_retriever_and_an_evaluation_by_rollout(make: Make, corpus: Path, run: Path) -> None:
    """Builds both kinds of index, serves the run's, and the part that plays searches it."""
    retriever = make("retriever", frozenset(MODELS))
    said = retriever.rolecast("index", "build", "--corpus", str(corpus), "--out", "index", "--kind", "hybrid")
    assert "hybrid index of 8 passages" in said
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with retriever.serving("retriever", "serve", "--index", str(retriever.folder / "index"), "--host", "127.0.0.1", "--port", str(port)):
        ready(url)
        found = httpx.post(f"{url}/retrieve", json={"queries": ["river 3"], "topk": 2}, timeout=60).json()["result"]
        assert "p3" in [passage["id"] for passage in found[0]]
    with retriever.serving("retriever", "serve", "--index", str(run / "index"), "--host", "127.0.0.1", "--port", str(port)):
        ready(url)
        assert "sft" in make("rollout").rolecast("eval", str(run), "--stage", "rl", ROLECAST_RETRIEVER_URL=url).replace("rl", "sft")


def test_judge(make: Make) -> None:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with make("judge").serving("judge", "serve", "--host", "127.0.0.1", "--port", str(port)):
        ready(url)
        inputs = {"question": "Who?", "prediction": "Kel", "gold": {"answers": ["Kel"]}}
        assert httpx.post(f"{url}/v1/judge", json={"kind": "answer", "inputs": inputs}, timeout=60).json()["score"] == 1.0


def test_rollout(make: Make) -> None:
    """A worker starts, and asks a coordinator that is not there."""
    port, nobody = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    away = [part for name in ("coordinator", "retriever", "judge") for part in (f"--{name}-url", f"http://127.0.0.1:{nobody}")]
    arguments = ["rollout", "serve", *away, "--host", "127.0.0.1", "--port", str(port)]
    with make("rollout").serving(*arguments, ROLECAST_RELEASE_KEY="k" * 40) as said:
        ready(url)
        deadline = time.monotonic() + 60
        while f"127.0.0.1:{nobody}" not in said.read_text():
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)


def test_control(make: Make, run: Path) -> None:
    control = make("control")
    control.rolecast("pipeline", "compile", "--out", "pipeline.yaml")
    assert (
        "pipelineSpec" in (control.folder / "pipeline.yaml").read_text() or "pipelineInfo" in (control.folder / "pipeline.yaml").read_text()
    )
    spec = str(ROOT / "tests" / "golden" / "specs" / "learner.yaml")
    assert [item["kind"] for item in yaml.safe_load_all(control.rolecast("deploy", "render", "--kind", "pytorchjob", "--spec", spec))]
    connect = "from rolecast.errors import InputError\nfrom rolecast.launching.cluster import connect\ntry: connect()\nexcept InputError as e: print(e)"
    assert "no cluster to talk to" in control.python("-c", connect, KUBECONFIG="/nowhere").stdout
    control.rolecast("report", str(run))


def test_s3(make: Make, weed: S3Server) -> None:
    code = "import sys\nfrom rolecast.store.uri import open_store\nstore = open_store(sys.argv[1])\nstore.put('a', b'it')\nprint(store.get('a'))"
    done = make("s3").python("-c", code, f"s3://{weed.make_bucket('extra')}/x", **weed.environ)
    assert (done.stdout.strip(), done.returncode) == ("b'it'", 0), done.stderr


def test_convert(make: Make, corpus: Path) -> None:
    convert = make("convert")
    convert.rolecast("data", "convert", str(corpus.with_name("q.parquet")), "--out", "questions")
    assert json.loads((convert.folder / "questions" / "questions.jsonl").read_text())["answers"] == ["x"]


def test_otel(make: Make, core: Installation) -> None:
    """Spans are begun and ended; where they would be sent to nobody listens, which is said and no more."""
    code = "from rolecast import spans\nfrom rolecast.service.tracing import start\nstart('judge')\nwith spans.span('x'): print(spans.headers())"
    [nobody] = free_ports(1)
    traced = {"ROLECAST_TRACING": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{nobody}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    done = make("otel").python("-c", code, **traced)
    assert (done.returncode, "traceparent" in done.stdout) == (0, True), done.stderr
    assert "pip install '.[otel]'" in core.python("-c", code, **traced).stderr


def test_facts(make: Make) -> None:
    facts = make("facts")
    code = "import pathlib\nfrom rolecast.world.tables import derive\nderive.HERE = pathlib.Path()\nderive.main()"
    done = facts.python("-c", code)
    assert done.returncode == 0, done.stderr
    assert list(facts.folder.glob("*.tsv"))


def test_core(core: Installation) -> None:
    """What needs no extra: worlds, files, methods, manifests."""
    core.rolecast("data", "world", "--out", "world")
    assert "decor" in core.rolecast("methods")
    core.rolecast("deploy", "render", "--kind", "trainjob", "--spec", str(ROOT / "tests" / "golden" / "specs" / "learner.yaml"))
    (core.folder / "q.jsonl").write_text(json.dumps({"id": "1", "question": "Who?", "golden_answers": ["x"]}))
    core.rolecast("data", "convert", "q.jsonl", "--out", "questions")
    assert core.rolecast("--version").startswith("rolecast ")


@pytest.mark.slow
def test_learner(make: Make, corpus: Path) -> None:
    learner = make("learner")
    learner.rolecast("run", "create", "run", "--config", str(corpus.with_name("config.yaml")))
    command = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=1",
        f"--master-port={free_ports(1)[0]}",
        "-m",
        "rolecast.learner.main",
        "sft",
        "run",
    ]
    done = learner.python(*command, ROLECAST_ZERO_STAGE="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (learner.folder / "run" / "sft" / "model" / "manifest.json").exists()


@pytest.mark.slow
def test_local(make: Make, corpus: Path) -> None:
    local = make("local")
    local.rolecast("pipeline", "run", "--local", "--config", str(corpus.with_name("config.yaml")), "--run", "run")
    assert (local.folder / "run" / "report.html").exists()


def test_mcp(make: Make) -> None:
    """The tool is offered, and tells that its agent is not there."""
    code = """
import asyncio
from rolecast.agent.tool import agent_client, make_tool_server
tool = make_tool_server(agent_client("http://127.0.0.1:9"))
print([found.name for found in asyncio.run(tool.list_tools())])
"""
    done = make("mcp").python("-c", code)
    assert done.stdout.strip() == "['ask']", done.stderr[-2000:]


def test_every_part_is_tried() -> None:
    """`service` is what services share, `dev` is this environment."""
    text = Path(__file__).read_text()
    assert [extra for extra in EXTRAS if extra not in ("service", "dev", *ELSEWHERE) and f'make("{extra}"' not in text] == []


@pytest.mark.parametrize("command", NEEDING)
def test_a_missing_package_is_one_line_with_its_extra(command: str, core: Installation, run: Path, corpus: Path) -> None:
    extra, last = NEEDING[command]
    places = {"run": run, "corpus": corpus, "config": corpus.with_name("config.yaml"), "parquet": corpus.with_name("q.parquet")}
    arguments = [word.format(**places) for word in command.split()] + ([last] if last else [])
    said = core.refused(*arguments, ROLECAST_RELEASE_KEY="k" * 40)
    assert said.startswith("rolecast: ")
    assert said.partition(" is not installed; ")[2].endswith(f"pip install '.[{extra}]' in a clone of the repository"), said


def test_a_pipeline_here_is_refused_before_its_first_step(make: Make, corpus: Path) -> None:
    """Where kfp is installed and what the steps need is not."""
    control = make("control")
    said = control.refused("pipeline", "run", "--local", "--config", str(corpus.with_name("config.yaml")), "--run", "run")
    assert said.endswith("pip install '.[local]' in a clone of the repository")
    assert not (control.folder / "run").exists()


@pytest.mark.parametrize("extra", ["", *(extra for extra in EXTRAS if extra not in ("dev", *ELSEWHERE))])
def test_doctor_calls_complete_what_is(make: Make, extra: str) -> None:
    """And says of all others what they lack. What an extra has is complete with it; nothing else is, unless it asks for no more."""
    installation = make(extra)
    lines = {line.split()[0]: line for line in installation.rolecast("doctor").splitlines()[1:]}
    assert "missing" not in lines["core"]
    if extra:
        assert "missing" not in lines[extra]
    assert "pip install '.[dev]' in a clone of the repository" in lines["dev"]


def ready(url: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, f"{url} was not ready within two minutes"
        time.sleep(0.2)
