"""The numbers that steer epochs, retention and time-outs; each with its unit and a sentence. No logic."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.topology import options


@dataclass(frozen=True)
class Settings:
    """How one query is run. The defaults suit one machine; those of `options` can be set by users."""

    min_epoch_s: float = options.MIN_EPOCH_SECONDS.default
    """Shortest time from the start of one epoch of an executor to the start of its next."""
    max_epoch_s: float = options.MAX_EPOCH_SECONDS.default
    """Predicted time that an epoch may take; it bounds the rows an epoch takes in."""
    sink_epoch_s: float = 0.02
    """Shortest time from the start of one sink epoch to the next."""
    sink_hold_s: float = 0.0
    """Time for which a sink lets rows gather before it takes them."""
    sink_bytes: int = 64 << 20
    """Bytes of gathered rows that a sink epoch takes at most; as many end the gathering early."""
    min_epoch_rows: int = 256
    """Rows that an epoch may always take, unless they are known to take longer than an epoch may."""
    max_epoch_rows: int = options.MAX_EPOCH_ROWS.default
    """Rows that an epoch takes at most."""
    max_epoch_bytes: int = 64 << 20
    """Bytes of input that an epoch takes at most, unless a single row of every shard is more."""
    driver_share: float = 0.5
    """Share of one core that the driver may spend on epochs before they are lengthened."""
    max_waiting_bytes: int = options.MAX_WAITING_BYTES.default
    """Unconsumed bytes in all channels at which sources stop."""
    base_interval_s: float = 5.0
    """Time between two base records."""
    retain_bytes: int = 128 << 20
    """Bytes of channel files that deltas may pin before their shards are snapshotted."""
    retain_epochs: int = 2_000
    """Epochs that a shard's deltas may reach back."""
    snapshot_min_bytes: int = 256 << 10
    """Delta bytes below which size alone does not call for a snapshot."""
    snapshot_bytes_per_epoch: int = 4 << 20
    """Bytes of snapshots that one epoch writes at most (always at least one shard)."""
    snapshots_per_epoch: int = 32
    """Shards that one epoch snapshots at most."""
    moves_at_once: int = 32
    """Shards that are copied to another node at the same time at most."""
    move_bytes_at_once: int = 256 << 20
    """Bytes of state that are copied to other nodes at the same time at most (always at least one shard)."""
    lease_timeout_s: float = options.LEASE_TIMEOUT_SECONDS.default
    """Silence after which a lease is taken as lost."""
    heartbeat_s: float = 2.0
    """Time between two heartbeats of the driver in the checkpoint."""
    holder_fresh_s: float = 15.0
    """Age up to which another host's heartbeat counts as alive."""
    memory_bytes: int = options.MEMORY_BYTES.default
    """Decoded state that a task keeps in memory."""
    retain_all: bool = options.RETAIN_ALL.default
    """Keep every log part and data file, so that a whole run can be checked afterwards from its records."""
