"""Which leases count as lost because nothing was heard of them, and whether that is the lease's or its node's silence.

Pure: facts and a time in, names out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

NO_HEARTBEAT: Final = "no heartbeat"
"""Why a lease was given up that was not heard of."""
QUIET_SHARE: Final = 0.5
"""Share of the time-out for which the other leases of a node have to be silent too before the node is."""


class Heard(Protocol):
    """A lease, as far as it matters here."""

    @property
    def node(self) -> str: ...
    @property
    def heard_at(self) -> float: ...


def late_leases(leases: Mapping[str, Heard], now: float, timeout_s: float) -> list[str]:
    """Return the leases that are silent for too long, and with them all of a node that is silent as a whole."""
    late = [name for name, lease in leases.items() if now - lease.heard_at > timeout_s]
    silent = {leases[name].node for name in late if is_silent(leases[name].node, leases, now, timeout_s)}
    return [name for name, lease in leases.items() if name in late or lease.node in silent]


def is_silent(node: str, leases: Mapping[str, Heard], now: float, timeout_s: float) -> bool:
    """Whether no lease of a node was heard of late; asked once one of them is given up."""
    return all(
        now - lease.heard_at > QUIET_SHARE * timeout_s for lease in leases.values() if lease.node == node
    )
