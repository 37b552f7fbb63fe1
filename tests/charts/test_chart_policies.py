"""Every rendered object keeps to the policies, and each policy sees the object that does not."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from rolecast.launching import inferenceservice, pytorchjob
from rolecast.launching.inferenceservice import ServingSpec
from rolecast.launching.spec import TrainingJobSpec
from tests.charts import policies
from tests.charts.rendering import ROOT, Helm, Object, of_kind, pods

EXTERNALS = ("global.externals.existingSecret=endpoints", "global.externals.keys={BIG_KEY,OTHER_KEY}", "global.externals.ports={443}")
Rule = Callable[[list[Object]], policies.Faults]
Change = Callable[[Object], None]


@pytest.mark.parametrize("rule", policies.RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule, helm4: Helm, install: str) -> None:
    objects = helm4.rendered(install)
    assert pods(objects), "nothing to look at"
    assert list(rule(objects)) == []


def _at(node: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


def without(*path: str | int) -> Change:
    def change(item: Object) -> None:
        del _at(item, path[:-1])[path[-1]]

    return change


def having(value: object, *path: str | int) -> Change:
    def change(item: Object) -> None:
        _at(item, path[:-1])[path[-1]] = value

    return change


TEMPLATE = ("spec", "template")
POD = (*TEMPLATE, "spec")
CONTAINER = (*POD, "containers", 0)
SECURITY = (*CONTAINER, "securityContext")
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

# One thing wrong with the rollout workers' Deployment of an installation on GPUs.
WRONG: list[tuple[Rule, Change]] = [
    (policies.service_links_are_off, without(*POD, "enableServiceLinks")),
    (policies.selectors_never_change, having("1", "spec", "selector", "matchLabels", "app.kubernetes.io/version")),
    (policies.secrets_are_referred_to, having([{"name": "OPENAI_API_KEY", "value": "x"}], *CONTAINER, "env")),
    (policies.pods_are_restricted, without(*POD, "securityContext", "seccompProfile")),
    (policies.pods_are_restricted, without(*POD, "securityContext", "runAsNonRoot")),
    (policies.pods_are_restricted, having(0, *POD, "securityContext", "runAsUser")),
    (policies.pods_are_restricted, having(True, *POD, "hostNetwork")),
    (policies.pods_are_restricted, having([{"name": "host", "hostPath": {"path": "/"}}], *POD, "volumes")),
    (policies.pods_are_restricted, having({}, *POD, "volumes", 0, "emptyDir")),
    (policies.pods_are_restricted, having([{"name": "plain", "image": "x"}], *POD, "initContainers")),
    (policies.pods_are_restricted, without(*SECURITY, "allowPrivilegeEscalation")),
    (policies.pods_are_restricted, having(["SYS_ADMIN"], *SECURITY, "capabilities", "add")),
    (policies.pods_are_restricted, without(*SECURITY, "capabilities")),
    (policies.pods_are_restricted, without(*SECURITY, "readOnlyRootFilesystem")),
    (policies.pods_are_restricted, having(0, *SECURITY, "runAsUser")),
    (policies.pods_are_restricted, without(*CONTAINER, "resources", "limits")),
    (policies.tokens_are_off, without(*POD, "automountServiceAccountToken")),
    (policies.tokens_are_off, having("rolecast-launcher", *POD, "serviceAccountName")),
    (policies.traffic_is_denied, without(*TEMPLATE, "metadata", "labels", "app.kubernetes.io/part-of")),
    (policies.gpus_are_not_doubled, having(ROLLING, "spec", "strategy")),
    (policies.disk_is_counted, without(*CONTAINER, "resources", "requests", "ephemeral-storage")),
    (policies.disk_is_counted, having("100Gi", *CONTAINER, "resources", "limits", "ephemeral-storage")),
    (policies.names_are_told_once, having([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}], *CONTAINER, "env")),
    (policies.configuration_is_summed, without(*TEMPLATE, "metadata", "annotations")),
    (policies.probes_are_apart, without(*CONTAINER, "startupProbe")),
    (policies.probes_are_apart, without(*CONTAINER, "lifecycle")),
    (policies.services_drain_within_the_grace, having(60, *POD, "terminationGracePeriodSeconds")),
    (policies.services_drain_within_the_grace, without(*POD, "terminationGracePeriodSeconds")),
    (policies.rollouts_wait_for_slow_starts, without("spec", "progressDeadlineSeconds")),
    (policies.rollouts_wait_for_slow_starts, having(1800, "spec", "progressDeadlineSeconds")),
    (policies.services_drain_within_the_grace, having([{"name": "ROLECAST_DRAIN_SECONDS", "value": "119"}], *CONTAINER, "env")),
    (policies.folders_are_writable, having([], *CONTAINER, "volumeMounts")),
    (policies.workers_have_the_release_key, having([], *CONTAINER, "env")),
    (policies.workers_have_the_release_key, having([{"name": "ROLECAST_RELEASE_KEY", "value": "x"}], *CONTAINER, "env")),
]


@pytest.mark.parametrize(("rule", "change"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_rule_sees_a_fault(rule: Rule, change: Change, helm4: Helm) -> None:
    objects = copy.deepcopy(helm4.rendered("prod"))
    change(next(item for item in of_kind(objects, "Deployment") if item["metadata"]["name"].endswith("-rollout")))
    assert list(rule(objects))


def test_rules_see_objects_that_must_not_be(helm4: Helm) -> None:
    objects = helm4.rendered("dev")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "open"}}
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "team-judge"}, "spec": {"selector": {}}}
    assert list(policies.secrets_are_referred_to([*objects, secret])) == ["Secret s3: is made from values"]
    assert list(policies.tokens_are_off([*objects, account])) == ["ServiceAccount open: automountServiceAccountToken is not false"]
    assert list(policies.budgets_fit([*objects, budget]))


def test_a_service_without_a_class_is_seen_where_workers_have_one(helm4: Helm) -> None:
    objects = copy.deepcopy(helm4.rendered("prod"))
    judge = next(item for item in of_kind(objects, "Deployment") if item["metadata"]["name"].endswith("-judge"))
    without(*POD, "priorityClassName")(judge)
    assert list(policies.services_go_before_workers(objects)) == ["Deployment of judge: has no class, and workers are rolecast-rollout"]


def test_pods_of_charts_jobs_services_and_examples_have_one_security_context(helm4: Helm) -> None:
    """A volume of terabytes, say, is not given to our group file by file whenever a pod starts."""
    examples = [
        item for path in sorted((ROOT / "manifests" / "examples").glob("*-run.yaml")) for item in yaml.safe_load_all(path.read_text())
    ]
    found = pods([*helm4.rendered("prod"), *examples, *(item for name in JOBS for item in golden(name))])
    assert len(found) >= 12
    contexts = {json.dumps(pod.spec["securityContext"], sort_keys=True) for pod in found}
    assert len(contexts) == 1
    assert json.loads(contexts.pop())["fsGroupChangePolicy"] == "OnRootMismatch"


def test_secrets_go_to_those_who_need_them(helm4: Helm) -> None:
    """By the names of the variables, from the Secrets that the values name."""
    given = {
        pod.owner.rsplit("-", 1)[-1]: {
            (variable["valueFrom"]["secretKeyRef"]["name"], variable["valueFrom"]["secretKeyRef"]["key"]): variable["name"]
            for variable in pod.containers[0]["env"]
            if "valueFrom" in variable
        }
        for pod in pods(of_kind(helm4.rendered("ci"), "Deployment"))
    }
    s3 = {("rolecast-s3", key): key for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")}
    judge = {("judge-openai", "OPENAI_API_KEY"): "OPENAI_API_KEY"}
    release = {("rolecast-release", "key"): "ROLECAST_RELEASE_KEY"}
    assert given == {"retriever": s3, "rollout": s3 | release, "agent": s3, "judge": judge}


def test_users_are_ours_where_no_override_takes_them_away(helm4: Helm) -> None:
    users = {
        install: {pod.spec["securityContext"].get("runAsUser") for pod in pods(helm4.rendered(install))}
        for install in ("dev", "dev-openshift", "prod")
    }
    assert users == {"dev": {10001}, "dev-openshift": {None}, "prod": {10001}}


def test_an_identity_takes_the_place_of_keys(helm4: Helm) -> None:
    """In those that store, and nowhere else; the token is for the STS and of no use at the API server."""
    objects = helm4.rendered("prod-identity")
    assert not [v for pod in pods(objects) for c in pod.containers for v in c.get("env", []) if v["name"] == "AWS_SECRET_ACCESS_KEY"]
    for pod in pods(of_kind(objects, "Deployment")):
        [container] = pod.containers
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        stores = not pod.owner.endswith("-judge")
        assert (env.get("AWS_WEB_IDENTITY_TOKEN_FILE") == f"{mounts.get('s3-token')}/token") == stores
        assert (env.get("AWS_CA_BUNDLE") == f"{mounts.get('s3-ca')}/ca.crt") == stores
        sources = [v["projected"]["sources"] for v in pod.spec["volumes"] if "projected" in v]
        assert [[source["serviceAccountToken"]["audience"] for source in found] for found in sources] == [["sts.example.com"]] * stores


def test_accounts_have_the_clouds_annotations(helm4: Helm) -> None:
    role = "eks\\.amazonaws\\.com/role-arn"
    sets = (
        "global.s3.credentials=cloud",
        "global.s3.existingSecret=",
        f"global.serviceAccount.annotations.{role}=all",
        f"agent.serviceAccount.annotations.{role}=own",
    )
    accounts = {
        item["metadata"]["name"]: item["metadata"]["annotations"] for item in of_kind(helm4.rendered("ci", *sets), "ServiceAccount")
    }
    assert len(accounts) == 6
    assert {name: found["eks.amazonaws.com/role-arn"] for name, found in accounts.items()} == {
        name: "own" if name.endswith("-agent") else "all" for name in accounts
    }


def test_a_rotation_restarts_every_service(helm4: Helm) -> None:
    def marks(*sets: str) -> set[str | None]:
        return {
            pod.metadata["annotations"].get("rolecast.dev/rotation") for pod in pods(of_kind(helm4.rendered("ci", *sets), "Deployment"))
        }

    assert (marks(), marks("global.rotation=november")) == ({None}, {"november"})


def test_tokens_go_to_those_who_take_or_show_them(helm4: Helm) -> None:
    """By file, so that they change without a restart; only the keys that a part needs."""

    def given(objects: list[Object]) -> dict[str, tuple[dict[str, str], list[str]]]:
        found = {}
        for pod in pods(of_kind(objects, "Deployment")):
            env = {v["name"]: v["value"] for v in pod.containers[0]["env"] if v["name"].startswith("ROLECAST_TOKEN")}
            keys = [
                item["key"]
                for volume in pod.spec["volumes"]
                if volume.get("secret", {}).get("secretName") == "who"
                for item in volume["secret"]["items"]
            ]
            mounted = [m["mountPath"] for m in pod.containers[0]["volumeMounts"] if m["name"] == "auth"]
            assert all(path.rsplit("/", 1)[0] in mounted for path in env.values())
            found[pod.owner.rsplit("-", 1)[-1]] = (env, keys)
        return found

    own = {"ROLECAST_TOKEN_FILE": "/etc/rolecast/auth/token"}
    taken = {"ROLECAST_TOKENS_FILE": "/etc/rolecast/auth/tokens"}
    assert given(helm4.rendered("ci", "global.auth.existingSecret=who")) == {
        "retriever": (taken, ["tokens"]), "judge": (taken, ["tokens"]), "rollout": (own, ["token"]), "agent": (taken | own, ["tokens", "token"]),
    }  # fmt: skip
    assert set(map(str, given(helm4.rendered("ci")).values())) == {str(({}, []))}
    [test] = [pod for pod in pods(helm4.rendered("ci", "global.auth.existingSecret=who")) if pod.owner == "Pod team-retriever-test"]
    reference = {"name": "ROLECAST_TOKEN", "valueFrom": {"secretKeyRef": {"name": "who", "key": "token"}}}
    assert reference in test.containers[0]["env"]


def test_keys_of_endpoints_go_to_those_who_play(helm4: Helm) -> None:
    """Each under its own name, in what the chart and the launchers render apart."""

    def given(objects: list[Object]) -> dict[str, list[tuple[str, str]]]:
        return {
            pod.owner.rsplit("-", 1)[-1]: [
                (variable["name"], variable["valueFrom"]["secretKeyRef"]["key"])
                for variable in pod.containers[0]["env"]
                if variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == "endpoints"
            ]
            for pod in pods(objects)
        }

    keys = [("BIG_KEY", "BIG_KEY"), ("OTHER_KEY", "OTHER_KEY")]
    objects = helm4.rendered("ci", *EXTERNALS)
    assert given(of_kind(objects, "Deployment")) == {"retriever": [], "judge": [], "rollout": keys, "agent": keys}
    assert [list(rule(objects)) for rule in policies.RULES] == [[]] * len(policies.RULES)
    named = {"externals_secret": "endpoints", "externals_keys": ("BIG_KEY", "OTHER_KEY")}
    assert set(map(tuple, given(pytorchjob.render(TrainingJobSpec(run="s3://b/runs/ci", stage="sft", image="x", **named))).values())) == {
        tuple(keys)
    }
    service = inferenceservice.render(ServingSpec(name="team", kind="agent", image="x", uri="s3://b/runs/ci", stage="rl", **named))
    env = service["spec"]["predictor"]["containers"][0]["env"]
    assert [v["name"] for v in env if v.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == "endpoints"] == ["BIG_KEY", "OTHER_KEY"]


@pytest.mark.parametrize("rule", policies.RULES, ids=lambda rule: rule.__name__)
def test_rule_holds_with_tokens(rule: Rule, helm4: Helm) -> None:
    assert list(rule(helm4.rendered("ci", "global.auth.existingSecret=who"))) == []


def test_workers_and_learners_share_one_secret(helm4: Helm) -> None:
    """By default, in what the chart and the launcher render apart; and under a name of one's own."""

    def reference(objects: list[Object]) -> list[dict[str, str]]:
        """Of the release's key, in every pod that has it."""
        env = [variable for pod in pods(objects) for container in pod.containers for variable in container.get("env", [])]
        return [variable["valueFrom"]["secretKeyRef"] for variable in env if variable["name"] == "ROLECAST_RELEASE_KEY"]

    job = pytorchjob.render(TrainingJobSpec(run="s3://rolecast/ci/runs/ci", stage="rl", image="x"))
    assert reference(helm4.rendered("ci")) == reference(job) == [{"name": "rolecast-release", "key": "key"}]
    assert reference(helm4.rendered("ci", "rollout.release.existingSecret=other")) == [{"name": "other", "key": "key"}]


def test_pod_of_a_new_kind_is_looked_at() -> None:
    """Somebody adds a CronJob whose template comes from nowhere in the library chart."""
    job = {"spec": {"template": {"spec": {"containers": [{"name": "sweep", "image": "x", "envFrom": [{"configMapRef": {"name": "y"}}]}]}}}}
    objects: list[Object] = [{"kind": "CronJob", "metadata": {"name": "sweep"}, "spec": {"jobTemplate": job}}]
    rules: list[Rule] = [
        policies.service_links_are_off,
        policies.pods_are_restricted,
        policies.tokens_are_off,
        policies.traffic_is_denied,
        policies.configuration_is_summed,
    ]
    assert [rule.__name__ for rule in rules if not list(rule(objects))] == []


def test_rules_hold_for_jobs_of_the_launcher(helm4: Helm) -> None:
    """Its pods come into the same namespace, under the same policies."""
    job = pytorchjob.render(TrainingJobSpec(run="s3://rolecast/ci/runs/ci", stage="rl", image="x", nodes=2))[0]
    objects = [job, *of_kind(helm4.rendered("ci"), "NetworkPolicy")]
    assert len(pods(objects)) == 2
    rules: list[Rule] = [
        policies.service_links_are_off,
        policies.secrets_are_referred_to,
        policies.pods_are_restricted,
        policies.tokens_are_off,
        policies.traffic_is_denied,
    ]
    assert [fault for rule in rules for fault in rule(objects)] == []


GOLDEN = ROOT / "tests" / "golden"
JOBS = ("pytorchjob", "trainjob", "agent", "predictor")


def golden(name: str) -> list[Object]:
    """Objects with whole pods: an InferenceService's predictor as one, and of Trainer's the runtime, since a TrainJob's is a patch."""
    found = [item for item in yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()) if item["kind"] != "TrainJob"]
    for item in found:
        if item["kind"] == "InferenceService":
            predictor = item["spec"].pop("predictor")
            item["template"] = {"metadata": {"labels": predictor["labels"]}, "spec": predictor}
    return found


@pytest.mark.parametrize("name", [*JOBS, *(f"{name}_overridden" for name in JOBS)])
def test_rules_hold_for_what_launchers_render_with_every_override_too(name: str) -> None:
    """But for what an override says: a capability of RDMA, a root file system that may be written."""
    objects = golden(name)
    assert pods(objects)
    faults = [
        fault
        for rule in (
            policies.service_links_are_off,
            policies.secrets_are_referred_to,
            policies.pods_are_restricted,
            policies.names_are_told_once,
        )
        for fault in rule(objects)
    ]
    meant = {
        "pytorchjob_overridden": "capabilities are not all dropped",
        "trainjob_overridden": "capabilities are not all dropped",
        "predictor_overridden": "readOnlyRootFilesystem is not true",
    }.get(name)
    ours = [fault for fault in faults if not (meant and fault.endswith(meant))]
    assert [
        fault for fault in ours if not (name.startswith("trainjob") and "requests or the memory limit" in fault)
    ] == []  # its job says them
    assert bool(meant) == any(meant and fault.endswith(meant) for fault in faults)


def test_launcher_alone_has_a_token(helm4: Helm) -> None:
    accounts = of_kind(helm4.rendered("ci"), "ServiceAccount")
    assert [a["metadata"]["name"] for a in accounts if a["automountServiceAccountToken"]] == ["rolecast-launcher"]


@pytest.mark.parametrize("change", ["global.s3.region=eu-west-1", "global.endpoints.coordinators=s3://other/place"])
def test_checksum_follows_the_endpoints(helm4: Helm, change: str) -> None:
    def sums(*sets: str) -> dict[str, str]:
        found = pods(of_kind(helm4.rendered("ci", *sets), "Deployment"))
        return {pod.owner: pod.metadata["annotations"]["checksum/endpoints"] for pod in found}

    before, after = sums(), sums(change)
    assert len(before) == 4
    assert all(before[owner] != after[owner] for owner in before)


def test_alerts_name_a_runbook(helm4: Helm) -> None:
    rules = [
        rule for item in of_kind(helm4.rendered("ci"), "PrometheusRule") for group in item["spec"]["groups"] for rule in group["rules"]
    ]
    assert len(rules) >= 4
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://docs.test/operations.md#{rule['alert'].lower()}"


def test_alerts_and_dashboard_ask_for_metrics_that_exist(helm4: Helm) -> None:
    objects = helm4.rendered("ci")
    dashboard = next(item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"].endswith("-dashboard"))
    panels = json.loads(dashboard["data"]["rolecast.json"])["panels"]
    asked = json.dumps([panels, [item["spec"] for item in of_kind(objects, "PrometheusRule")]])
    names = {re.sub("_(total|bucket|sum|count)$", "", name) for name in re.findall(r"\brolecast_[a-z_]+", asked)}
    code = "".join(path.read_text() for path in (ROOT / "src" / "rolecast").rglob("*.py"))
    assert len(names) >= 4
    assert [name for name in names if f'"{name}"' not in code] == []


def test_monitoring_is_off_by_default(helm4: Helm) -> None:
    kinds = {item["kind"] for item in helm4.rendered("dev")}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert not [item for item in helm4.rendered("dev") if item["metadata"]["name"].endswith("-dashboard")]
