"""A service's flags are the fields of its settings: names, types, defaults and descriptions are said there alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from rolecast.service.settings import ServiceSettings, flag, read_settings

S = TypeVar("S", bound=ServiceSettings)


def takes_settings(model: type[S], argument: str = "") -> Callable[[Callable[[S], None]], Callable[..., None]]:
    """Turns a function of settings into a command: a flag for each field, a service's own before those that all have.

    `argument`: the field that is given without a flag. Values stay text until the model reads them, together with the variables.
    """
    names = sorted(model.model_fields, key=lambda name: name in ServiceSettings.model_fields)

    def decorated(command: Callable[[S], None]) -> Callable[..., None]:
        def parsed(**flags: str | None) -> None:
            command(read_settings(model, flags))

        parsed.__name__ = command.__name__
        parsed.__doc__ = f"{inspect.getdoc(command)}\n\nEvery option can be given as ROLECAST_<NAME> instead."
        parsed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [_parameter(name, model.model_fields[name], name == argument) for name in names]
        )
        return parsed

    return decorated


def _parameter(name: str, field: FieldInfo, bare: bool) -> inspect.Parameter:
    if bare:
        default: Any = typer.Argument(None, metavar=name.upper(), help=_help(field))
    else:
        default = typer.Option(None, flag(name), metavar=_metavar(name, field), help=_help(field))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str | None, default=default)


def _help(field: FieldInfo) -> str:
    """The description, and the default as typer writes it: it knows none, since a flag that is not given leaves the variable."""
    if field.is_required():
        return f"{field.description}  [required]"
    default = field.default
    if default in (None, ""):
        return f"{field.description}"
    return f"{field.description}  [default: {int(default) if isinstance(default, float) and default.is_integer() else default}]"


def _metavar(name: str, field: FieldInfo) -> str:
    if name.endswith("_url"):
        return "URL"
    kind: Any = field.annotation
    if NoneType in get_args(kind):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    return f"<{'|'.join(get_args(kind)) if get_origin(kind) is Literal else kind.__name__}>"
