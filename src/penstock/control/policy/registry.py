"""Policies by name. A new policy is one file and one line in `BUILT_IN`, or one call of `register`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from typing import Any

from penstock.control.policy.advise import Advise
from penstock.control.policy.protocol import Policy
from penstock.control.sla import SLA
from penstock.errors import DeclarationError
from penstock.suggesting import did_you_mean

ADVISE = "advise"

DEFAULT = "penstock"

BUILT_IN: dict[str, str] = {
    "drs": "penstock.control.policy.drs:DrsPolicy",
    "drs-lb": "penstock.control.policy.drs:make_drs_lb",
    "elasticutor": "penstock.control.policy.elasticutor:ElasticutorPolicy",
    "esstream": "penstock.control.policy.esstream:EsStreamPolicy",
    "naive-ec": "penstock.control.policy.elasticutor:make_naive_ec",
    "penstock": "penstock.control.policy.penstock:PenstockPolicy",
    "resource-centric": "penstock.control.policy.elasticutor:make_resource_centric",
    "static": "penstock.control.policy.static:StaticPolicy",
    "streamswitch": "penstock.control.policy.streamswitch:StreamSwitchPolicy",
}
"""Name -> `module:class`, imported when it is first asked for."""

_NAME = "name"
"""What a policy goes by in journals, and what guards and models are chosen by: no option, though a field of it."""

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")

_REGISTERED: dict[str, Callable[..., Policy]] = {}


def register(name: str, factory: Callable[..., Policy]) -> None:
    """Make a policy known under a name; its options are the factory's keyword arguments.

    Raises:
        DeclarationError: the name is taken, or cannot be one.
    """
    if name in names() or not name or ":" in name:
        raise DeclarationError(
            f"policy: '{name}' is taken or no name; choose another one for the new policy."
        )
    _REGISTERED[name] = factory


def unregister(name: str) -> None:
    """Take back what `register` did."""
    _REGISTERED.pop(name, None)


def names() -> list[str]:
    """Return all names that `make_policy` accepts, `advise:NAME` aside."""
    return sorted({*BUILT_IN, *_REGISTERED, ADVISE})


def is_registered(text: str) -> bool:
    """Return whether the policy that a text names, options and `advise:` aside, is one of `names`."""
    return text.removeprefix(f"{ADVISE}:").partition(":")[0] in names()


def make_policy(text: str, **options: Any) -> Policy:
    """Return a new policy. `advise` is the default one, and `advise:NAME` any other, that only says what it would do.

    Args:
        text: its name; options may stand behind it, as in `streamswitch:margin=0.4,alert_s=0.2`.
        options: of the policy; they win over those of the text.

    Raises:
        DeclarationError: there is no such policy, it has no such option, or an option cannot be that.
    """
    if not isinstance(text, str):
        raise DeclarationError(f"a policy is named by text, such as 'penstock', not {text!r}.")
    name, colon, rest = text.partition(":")
    if name == ADVISE:
        if rest.partition(":")[0] == ADVISE or (colon and not rest):
            raise DeclarationError(
                f"policy '{text}': write {ADVISE}, or {ADVISE}:NAME with one policy's name."
            )
        return Advise(make_policy(rest or DEFAULT, **options))
    stated = {**(dict(_read_option(text, part) for part in rest.split(",")) if colon else {}), **options}
    factory = _REGISTERED.get(name) or _load(name)
    if _NAME in stated:
        raise _unknown_option(name, _NAME)
    try:
        return factory(**stated)
    except TypeError as error:
        raise _explain(name, error) from error


def make_policy_for(sla: SLA, text: str, **options: Any) -> Policy:
    """Return a new policy that is to hold a bound.

    Raises:
        DeclarationError: as `make_policy`, or options that do not go with the bound.
    """
    policy = make_policy(text, **options)
    check = getattr(policy, "check_sla", None)
    if check is not None:
        check(sla)
    return policy


def state_policy(text: str, **options: Any) -> str:
    """Return what `make_policy` makes the same policy of without options beside it; empty where one of them cannot be
    written."""
    name, _, rest = text.partition(":")
    if name == ADVISE:
        inner = state_policy(rest or DEFAULT, **options)
        return inner and f"{ADVISE}:{inner}"
    parts = []
    for key, value in options.items():
        part = f"{key}={str(value).lower() if value is None or isinstance(value, bool) else value}"
        if "," in part or _read_option(text, part) != (key, value):
            return ""
        parts.append(part)
    return ",".join([text, *parts]) if rest else f"{text}:{','.join(parts)}" if parts else text


def _read_option(text: str, part: str) -> tuple[str, Any]:
    key, equals, value = part.partition("=")
    if not equals or not key.isidentifier():
        raise DeclarationError(f"policy '{text}': write options as name=value, separated by commas.")
    for read in (int, float):
        try:
            return key, read(value)
        except ValueError:
            continue
    return key, {"true": True, "false": False, "none": None}.get(value.lower(), value)


def _explain(name: str, error: TypeError) -> DeclarationError:
    unknown = _UNEXPECTED.search(str(error))
    if unknown is None:
        return DeclarationError(f"policy '{name}': {error}.")
    return _unknown_option(name, unknown[1])


def _unknown_option(name: str, option: str) -> DeclarationError:
    there = [one for one in _options_of(name) if one != _NAME]
    hint = did_you_mean(option, there, f"it has {', '.join(there) or 'none'}.")
    return DeclarationError(f"policy '{name}' has no option '{option}'; {hint}")


def _options_of(name: str) -> list[str]:
    """Names of the options of a policy, as one that was made without any has them."""
    factory = _REGISTERED.get(name) or _load(name)
    try:
        made: Any = factory()
    except TypeError:
        return []
    if not is_dataclass(made):
        return [one for one in signature(factory).parameters if not one.startswith("_")]
    return [one.name for one in fields(made) if one.init and not one.name.startswith("_")]


def _load(name: str) -> Callable[..., Policy]:
    if name not in BUILT_IN:
        hint = did_you_mean(name, names(), f"there are {', '.join(names())}.")
        raise DeclarationError(f"there is no policy '{name}'; {hint}")
    module, _, attribute = BUILT_IN[name].partition(":")
    factory: Callable[..., Policy] = getattr(import_module(module), attribute)
    return factory
