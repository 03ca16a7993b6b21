"""Policies by name. A new policy is one file and one line in `BUILT_IN`, or one call of `register`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from penstock.control.policy.advise import Advise
from penstock.control.policy.protocol import Policy
from penstock.errors import DeclarationError

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


def make_policy(name: str, **options: Any) -> Policy:
    """Return a new policy. `advise` is the default one, and `advise:NAME` any other, that only says what it would do.

    Raises:
        DeclarationError: there is no such policy, or it has no such option.
    """
    if name == ADVISE or name.startswith(f"{ADVISE}:"):
        return Advise(make_policy(name.partition(":")[2] or DEFAULT, **options))
    factory = _REGISTERED.get(name) or _load(name)
    try:
        return factory(**options)
    except TypeError as error:
        raise DeclarationError(f"policy '{name}': {error}.") from error


def _load(name: str) -> Callable[..., Policy]:
    if name not in BUILT_IN:
        near = difflib.get_close_matches(name, names(), 1, 0.4)
        hint = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(names())}."
        raise DeclarationError(f"there is no policy '{name}'{hint}")
    module, _, attribute = BUILT_IN[name].partition(":")
    factory: Callable[..., Policy] = getattr(import_module(module), attribute)
    return factory
