"""`rolecast pipeline …`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolecast.cli.compare import Budget, Methods, Seeds, names_in, planned
from rolecast.cli.places import Overrides, path_option, run_option
from rolecast.cli.runs import Procs
from rolecast.errors import InputError

if TYPE_CHECKING:
    from rolecast.config import RunConfig
    from rolecast.launching import overrides as pods

app = typer.Typer(help="The whole job as a Kubeflow pipeline.")
Launcher = Annotated[Literal["local", "pytorchjob", "trainjob"], typer.Option(help="How training steps run.")]
JobFile = Annotated[Path | None, path_option("YAML of the training jobs' spec, without run, stage and kind.")]
Image = Annotated[str | None, typer.Option(help="Of launch and report: the control image.")]
RetrieverImage = Annotated[str | None, typer.Option(help="Builds the index.")]
RolloutImage = Annotated[str | None, typer.Option(help="Runs evaluations.")]
S3Secret = Annotated[str | None, typer.Option(help="Name of the Secret with the store's keys.")]
Endpoints = Annotated[str | None, typer.Option(help="Name of the ConfigMap that says where services are.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameter", metavar="KEY=VALUE", help="Another parameter of the pipeline, its value in YAML; as often as you like."),
]
Block = Annotated[
    Path | None, path_option("YAML of what the cluster wants of the steps' pods: the block `overrides` of charts and jobs.", "--overrides")
]
Out = Annotated[Path | None, path_option("YAML file to write the pipeline with its arguments into, instead of starting it.")]
Host = Annotated[str | None, typer.Option(envvar="ROLECAST_KFP_HOST", help="URL of Kubeflow Pipelines.")]
Namespace = Annotated[str | None, typer.Option(help="Of the profile, where Kubeflow has several users.")]
Experiment = Annotated[str, typer.Option()]
ServiceAccount = Annotated[str, typer.Option(help="That the steps run as.")]
WORDS = {dict: "a mapping", list: "a list"}


@app.command()
def run(
    config: Annotated[Path, path_option("The run's config, YAML.")],
    path: Annotated[Path, run_option("The run's folder.")],
    local: Annotated[bool, typer.Option("--local", help="On this machine, one process per step.")] = False,
    procs: Procs = None,
    overrides: Overrides = None,
) -> None:
    """Every stage, evaluation and report of one run. Interrupted runs go on from their last committed checkpoint."""
    from rolecast.config import load_config
    from rolecast.evaluation.table import print_summary
    from rolecast.launching.local_pipeline import run_local

    if not local:
        raise InputError("add --local to run it on this machine; `rolecast pipeline submit` runs it on a cluster")
    run_local(path, load_config(config, overrides or ()), procs)
    print_summary(path / "summary.json")


@app.command()
def compile(
    out: Annotated[Path, path_option("YAML file to write.")],
    config: Annotated[Path | None, path_option("A run's config, YAML: its method's stages become steps; SFT → RL without it.")] = None,
    block: Block = None,
    overrides: Overrides = None,
) -> None:
    """Compile the pipeline for a Kubeflow Pipelines server."""
    from rolecast_pipelines.place import keys_of

    from rolecast.config import RunConfig, load_config
    from rolecast.launching.local_pipeline import compile_pipeline

    loaded = load_config(config, overrides or ()) if config else RunConfig()
    compile_pipeline(out, loaded.schedule, keys_of(loaded), _wanted(block))
    print(out)


@app.command()
def submit(
    config: Annotated[Path, path_option("The run's config, YAML.")],
    uri: Annotated[str, typer.Option("--run", help="Where the run lives, for instance s3://bucket/runs/NAME.")],
    launcher: Launcher = "pytorchjob",
    job: JobFile = None,
    image: Image = None,
    retriever_image: RetrieverImage = None,
    rollout_image: RolloutImage = None,
    s3_secret: S3Secret = None,
    endpoints: Endpoints = None,
    host: Host = None,
    namespace: Namespace = None,
    experiment: Experiment = "rolecast",
    service_account: ServiceAccount = "rolecast-launcher",
    parameters: Parameters = None,
    block: Block = None,
    overrides: Overrides = None,
) -> None:
    """Start the pipeline on a Kubeflow Pipelines server. A token is read from ROLECAST_KFP_TOKEN."""
    from rolecast_pipelines.place import keys_of
    from rolecast_pipelines.schedule import make_pipeline

    from rolecast.config import load_config

    loaded = load_config(config, overrides or ())
    images = {"image": image, "retriever_image": retriever_image, "rollout_image": rollout_image}
    arguments = {"run": uri, "config": loaded.model_dump_json(), **_launched(launcher, job, {uri: loaded})}
    wanted = _wanted(block)
    arguments |= _placed({**images, "s3_secret": s3_secret, "endpoints": endpoints}, parameters, wanted)
    made = make_pipeline(loaded.schedule, keys_of(loaded), wanted)
    _start(made, None, host, arguments, loaded.name, experiment, namespace, service_account)


@app.command()
def compare(
    methods: Methods,
    budget: Budget,
    uri: Annotated[str, typer.Option("--run", help="Where the runs and the comparison live, for instance s3://bucket/runs/NAME.")],
    seeds: Seeds = "0",
    out: Out = None,
    launcher: Launcher = "pytorchjob",
    job: JobFile = None,
    image: Image = None,
    retriever_image: RetrieverImage = None,
    rollout_image: RolloutImage = None,
    s3_secret: S3Secret = None,
    endpoints: Endpoints = None,
    host: Host = None,
    namespace: Namespace = None,
    experiment: Experiment = "rolecast",
    service_account: ServiceAccount = "rolecast-launcher",
    parameters: Parameters = None,
    block: Block = None,
    overrides: Overrides = None,
) -> None:
    """Start `rolecast compare` as one pipeline: all runs beside each other, and a step that compares them."""
    from rolecast_pipelines.comparison import make_comparison

    from rolecast.stages.compared import place_of

    members = planned(methods, seeds, budget, overrides)
    runs = {place_of(uri, member): member.config for member in members}
    images = {"image": image, "retriever_image": retriever_image, "rollout_image": rollout_image}
    arguments = {"out": uri, **_launched(launcher, job, runs)}
    wanted = _wanted(block)
    arguments |= _placed({**images, "s3_secret": s3_secret, "endpoints": endpoints}, parameters, wanted)
    _start(make_comparison(members, wanted), out, host, arguments, "compare", experiment, namespace, service_account)


@app.command()
def index_only(
    corpus: Annotated[str, typer.Option(help="JSON lines of {id, title, text}: s3://bucket/prefix/NAME.jsonl, or .jsonl.gz.")],
    uri: Annotated[str, typer.Option("--index", help="Where the index is published: s3://bucket/prefix/NAME.")],
    kind: Annotated[Literal["bm25", "dense", "hybrid"], typer.Option(help="hybrid holds both and can serve as either.")] = "hybrid",
    encoder: Annotated[str, typer.Option(help="minilm (packaged), or a sentence-transformers directory of the image.")] = "minilm",
    out: Out = None,
    host: Host = None,
    namespace: Namespace = None,
    experiment: Experiment = "rolecast",
    service_account: ServiceAccount = "rolecast-launcher",
    parameters: Parameters = None,
    block: Block = None,
) -> None:
    """Start a pipeline that builds an index which many runs search."""
    from rolecast_pipelines.indexing import make_index_only

    from rolecast.store.uri import S3

    for flag, place in (("--corpus", corpus), ("--index", uri)):
        if not place.startswith(S3):
            raise InputError(
                f"{flag} {place}: the pipeline's pods reach s3://bucket/prefix/NAME alone; `rolecast index build` builds one here"
            )
    wanted = _wanted(block)
    arguments = {"corpus": corpus, "out": uri, "kind": kind, "encoder": encoder, **_placed({}, parameters, wanted)}
    _start(make_index_only(wanted), out, host, arguments, "index", experiment, namespace, service_account)


@app.command()
def deploy(
    uri: Annotated[str, typer.Option("--run", help="The run whose team is to serve, s3://bucket/prefix/NAME.")],
    stage: Annotated[str, typer.Option(help="The stage whose team it is, usually the last one.")],
    service: Annotated[Path, path_option("YAML of the agent's service: name, image and more, without kind, uri and stage.")],
    target: Annotated[
        Literal["kserve", "record"], typer.Option(help="record keeps the manifest beside the run, for others to apply.")
    ] = "kserve",
    margin: Annotated[float, typer.Option(help="Deploys where the 95 % interval of new − deployed lies above −MARGIN.")] = 0.0,
    questions: Annotated[int, typer.Option(min=1, help="Test questions that both must have answered, at least.")] = 100,
    keys: Annotated[str, typer.Option(metavar="A,B,…", help="Variables with keys of endpoints that roles speak through.")] = "",
    out: Out = None,
    host: Host = None,
    namespace: Namespace = None,
    experiment: Experiment = "rolecast",
    service_account: ServiceAccount = "rolecast-launcher",
    parameters: Parameters = None,
    block: Block = None,
) -> None:
    """Start a pipeline that evaluates a run's team, and deploys it if it is better than the one that is deployed."""
    from rolecast_pipelines.deployment import make_evaluate_and_deploy

    from rolecast.launching.inferenceservice import read_agent
    from rolecast.reading import read_mapping

    settings = read_mapping(service, (), "service")
    read_agent(settings, uri, stage, str(service))
    named = {"run": uri, "stage": stage, "service": json.dumps(settings), "target": target, "margin": margin, "questions": questions}
    wanted = _wanted(block)
    made = make_evaluate_and_deploy(names_in(keys), wanted)
    _start(made, out, host, {**named, **_placed({}, parameters, wanted)}, "deploy", experiment, namespace, service_account)


def _start(
    pipeline: Any, out: Path | None, host: str | None, arguments: dict[str, Any], name: str, experiment: str, namespace: str | None,
    service_account: str,
) -> None:  # fmt: skip
    """On a server, or into a file, whose parameters then have these arguments by default."""
    from rolecast.launching.local_pipeline import write_pipeline
    from rolecast.launching.submit import submit as start

    if out is not None:
        write_pipeline(out, pipeline, arguments)
        print(out)
        return
    started = start(
        host, arguments, pipeline, name=name, experiment=experiment, namespace=namespace, service_account=service_account
    )  # fmt: skip
    print(started.url)


def _launched(launcher: str, job: Path | None, runs: dict[str, RunConfig]) -> dict[str, Any]:
    """The arguments that say how training runs. What cannot work for any of the runs is told now, not after the index was built."""
    from rolecast.launching.spec import BY_PIPELINE, read_spec
    from rolecast.reading import read_mapping
    from rolecast.stages.checks import check_run

    if job is None and launcher != "local":
        raise InputError(f"--launcher {launcher} starts jobs: give --job FILE, their spec with an image at least (docs/jobs.md)")
    settings = read_mapping(job, (), "spec")
    if given := sorted(BY_PIPELINE & set(settings)):
        raise InputError(f"{job}: leave out {given[0]}; --run says where the run lives, and the pipeline runs every stage as its kind")
    for uri, config in runs.items():
        check_run(config, uri)
        for stage in config.schedule if launcher != "local" else ():
            read_spec({**settings, "run": uri, "stage": stage.name, "kind": stage.kind}, str(job))
    return {"launcher": launcher, "job": json.dumps(settings)}


def _wanted(block: Path | None) -> pods.Overrides:
    from rolecast.launching.overrides import Overrides as Wanted
    from rolecast.launching.spec import validated
    from rolecast.reading import read_mapping

    return validated(Wanted, read_mapping(block, (), "overrides") if block else {}, str(block))


def _placed(named: dict[str, str | None], parameters: list[str] | None, wanted: pods.Overrides) -> dict[str, Any]:
    """The arguments that say where steps run. `InputError` for a parameter that no pipeline has, and for a value of another kind."""
    from rolecast_pipelines.parameters import PLACE, amounts_given

    from rolecast.reading import read_mapping

    kinds = {parameter.name: parameter.kind for parameter in PLACE}
    for text in parameters or ():
        if "=" not in text:
            raise InputError(f"--parameter {text}: write {text}=VALUE")
    given = read_mapping(None, parameters or (), "parameters")
    for name, value in given.items():
        if name not in kinds:
            raise InputError(f"--parameter {name}: there is no such parameter; there are {', '.join(kinds)}")
        if kinds[name] is not str and not isinstance(value, kinds[name]):
            raise InputError(f"--parameter {name}: give {WORDS[kinds[name]]}, as YAML has it")
    for key, value in given.get("node_selector", {}).items():
        if not isinstance(value, str):  # a label is text; of a number the pipeline would make 1.0
            raise InputError(f"--parameter node_selector: {key}: {value!r} is no text; put it into quotes")
    plain = {name: str(value) if kinds[name] is str else value for name, value in given.items()}
    if "node_selector" in given:  # in place of the pipeline's default, which is the overrides'
        plain["node_selector"] = {**given["node_selector"], **wanted.node_selector}
    try:
        plain |= amounts_given(plain)
    except ValueError as error:
        raise InputError(f"--parameter: {error}") from None
    return {**{name: value for name, value in named.items() if value is not None}, **plain}
