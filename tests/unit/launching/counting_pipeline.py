"""A pipeline whose only step always fails. A module of its own: kfp reads annotations, which must not be texts."""

from kfp import dsl


@dsl.component(install_kfp_package=False)
def count(file: str):
    with open(file, "a") as tries:
        tries.write("x")
    raise SystemExit("rolecast: told to end")


@dsl.pipeline
def counting(file: str):
    count(file=file).set_retry(2, backoff_duration="0s")
