"""Every method by name: one folder each in this package, and those of installed plugins (entry points of the group `rolecast.methods`).

A plugin is imported when its method is named, so one that is broken stops only what names it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from pkgutil import iter_modules
from typing import Any, TypeVar

from pydantic_core import PydanticCustomError

from rolecast import methods as package
from rolecast.errors import InputError
from rolecast.judge.kinds import SHARED, JudgeKind, Rule
from rolecast.methods.base import Method, MethodConfig
from rolecast.schedule import check

GROUP = "rolecast.methods"
DEFAULT = "decor"
M = TypeVar("M", bound=Method)
_classes: dict[str, type[Method]] = {}


def register(method: type[M]) -> type[M]:
    """Class decorator: makes the method known by its `name`, with the folder that its module stands in.

    What is declared must fit together: the config's name, and kinds that begin with the method's.
    """
    name = method.name
    if method.config_type.model_fields["name"].default != name:
        raise InputError(f"{method.__name__}.config_type: give its field `name` the default {name!r}")
    asked = [kind.name for kind in method.judge_kinds()]
    if wrong := [kind for kind in asked if not kind.startswith(f"{name}.")] + sorted(set(method.verdicts()) - set(asked)):
        raise InputError(f"{method.__name__}: judge kind {wrong[0]!r} is none of this method; declare {name}.WHAT in judge_kinds()")
    taken = _classes.get(name)
    if taken is not None and (taken.__module__, taken.__qualname__) != (method.__module__, method.__qualname__):
        raise InputError(f"method {name} is {taken.__module__}.{taken.__qualname__} already; name {method.__name__} otherwise")
    method.package = sys.modules[method.__module__].__package__ or method.__module__
    _classes[name] = method
    return method


def find(name: str) -> type[Method]:
    """`InputError` for a name that nothing has, or a plugin that cannot be loaded."""
    if name not in _built_in() and name not in _classes:
        entries = _plugins().get(name, [])
        if not entries:
            raise InputError(f"unknown method {name!r}; known: {', '.join(known())}")
        if len(entries) > 1:
            raise InputError(f"method {name} is in several plugins: {', '.join(map(_origin, entries))}; uninstall all but one")
        _load(entries[0])
    return _classes[name]


def known() -> list[str]:
    """Names that `find` can be asked for, plugins that may be broken among them; this package's first."""
    return [*_built_in(), *sorted((_classes.keys() | _plugins().keys()) - set(_built_in()))]


def make_method(config: MethodConfig) -> Method:
    """`InputError` for a method whose schedule no run could go through, or whose prompts no role could be given."""
    method = find(config.name)(config)
    method.check_prompts()
    schedule = method.schedule()
    try:
        check(schedule, method.roles)
    except ValueError as error:
        raise InputError(f"method {config.name}: {error}") from None
    unprepared = [stage.name for stage in schedule if not stage.trains and type(method).prepare is Method.prepare]
    if unprepared:
        raise InputError(f"method {config.name}: stage {unprepared[0]!r} prepares questions; say of what ({type(method).__name__}.prepare)")
    return method


def default_config() -> MethodConfig:
    return find(DEFAULT).config_type(name=DEFAULT)


def read_config(value: object) -> MethodConfig:
    """A config's `method`, read by the type of the method that it names. Raises what pydantic reports with the key's full name."""
    if not isinstance(value, MethodConfig | Mapping):
        raise PydanticCustomError("method", "a method is a mapping of keys to values, with its name")
    given = dict(value)
    name = given.get("name")
    if not isinstance(name, str):
        raise PydanticCustomError("method", "give its name: one of {known}", {"known": ", ".join(known())})
    try:
        plugin = _plugin(name, given.get("plugin"))
        config_type = find(name).config_type
    except InputError as error:
        raise PydanticCustomError("method", "{reason}", {"reason": str(error)}) from None
    return config_type.model_validate({**given, "plugin": plugin})


def release(config: MethodConfig) -> str:
    """The code that plays a run: this package, and the plugin that its method comes from."""
    return version("rolecast") + (f" + {config.plugin}" if config.plugin else "")


def judge_kind(kind: str) -> JudgeKind | None:
    """The record of a kind; None for one that no method here has."""
    return SHARED.get(kind) or next((found for found in _kinds(kind) if found.name == kind), None)


def judge_prompts() -> dict[str, str]:
    """Digests of the prompts of all kinds here, by kind. A plugin that cannot be loaded has none."""
    found = dict(SHARED)
    for name in known():
        with suppress(InputError):
            found |= {kind.name: kind for kind in find(name).judge_kinds()}
    return {name: kind.digest for name, kind in sorted(found.items())}


def verdict_rule(kind: str) -> Rule | None:
    """The lexical judge's rule for a method's kind."""
    name = kind.partition(".")[0]
    return find(name).verdicts().get(kind) if name in known() else None


def describe() -> list[dict[str, Any]]:
    """What `rolecast methods` lists. Switches are the method's own options with their defaults. A broken plugin has its reason."""
    rows = [_row(name) for name in known()]
    shadowed = [entry for name in _built_in() for entry in _plugins().get(name, [])]
    return rows + [_broken(entry.name, _origin(entry), f"{entry.name} is a method of rolecast's own") for entry in shadowed]


def _row(name: str) -> dict[str, Any]:
    origin = "built-in" if name in _built_in() else ", ".join(map(_origin, _plugins().get(name, []))) or _classes[name].__module__
    try:
        method = find(name)
        default = method.config_type(name=name)
        roles = [{"name": r.name, "slot": r.slot, "sees": sorted(r.sees)} for r in make_method(default).roles.values()]
    except InputError as error:
        return _broken(name, origin, str(error))
    switches = {key: value for key, value in default.model_dump(mode="json").items() if key not in ("name", "plugin")}
    return {"name": name, "origin": origin, "trained": method.trained, "roles": roles, "switches": switches}


def _broken(name: str, origin: str, reason: str) -> dict[str, Any]:
    return {"name": name, "origin": origin, "broken": reason}


def _kinds(kind: str) -> Sequence[JudgeKind]:
    name = kind.partition(".")[0]
    return find(name).judge_kinds() if name in known() else ()


@cache
def _built_in() -> tuple[str, ...]:
    """Imports this package's folders. The trained methods come first."""
    names = [module.name for module in iter_modules(package.__path__) if module.ispkg]
    for name in names:
        import_module(f"{package.__name__}.{name}")
        if name not in _classes:
            raise InputError(
                f"the folder methods/{name} brings no method {name!r}: import the class in its __init__.py, and give it @register and name = {name!r}"
            )
    return tuple(sorted(names, key=lambda name: (not _classes[name].trained, name)))


@cache
def _plugins() -> Mapping[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entry_points(group=GROUP):
        found[entry.name].append(entry)
    return dict(found)


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _plugin(name: str, asked: object) -> str | None:
    """The distribution that `name` comes from here, as a requirement. `InputError` where a run that is read asks for another one."""
    entries = () if name in _built_in() else _plugins().get(name, ())
    here = [f"{entry.dist.name}=={entry.dist.version}" for entry in entries if entry.dist]
    if asked is not None and asked not in here:
        asked_name, _, asked_version = str(asked).partition("==")
        state = f"here it comes from {', '.join(here).replace('==', ' ')}" if here else "which is not installed here"
        raise InputError(f"method {name} comes from plugin {asked_name} {asked_version}, {state}; pip install {asked}")
    return here[0] if here else None


def _load(entry: EntryPoint) -> None:
    try:
        method = entry.load()
        if not (isinstance(method, type) and issubclass(method, Method) and method.name == entry.name):
            raise TypeError(f"{entry.value} is no Method class with the name {entry.name!r}")
        register(method)
    except Exception as error:
        reason = " ".join(f"{error.__class__.__name__}: {error}".split())
        raise InputError(f"method {entry.name}: its plugin {_origin(entry)} cannot be loaded: {reason}") from error
