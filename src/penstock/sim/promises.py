"""The promises that a simulated world holds its drivers to: at every commit, deletion and start, and at the
end.

Knows every record that was ever asked for, by hash, so that the one committed line of each chain can be
walked back from its head. Reads the disk of the world from outside, as a driver that starts at this moment
would.
"""

from __future__ import annotations

from penstock.dataplane import paths, records
from penstock.dataplane.chains import Chains
from penstock.dataplane.disk import PROBE, Disk, is_temp
from penstock.dataplane.program import Program, operator_of
from penstock.dataplane.recordlog import read_tail
from penstock.dataplane.records import Record
from penstock.errors import CheckpointError, FencedError, PenstockError, StorageError
from penstock.sim.inprocess import Driver
from penstock.sim.model import Model, require
from penstock.sim.surroundings import SinkLog


class Promises:
    """What must hold of one checkpoint, whoever runs on it.

    Args:
        machine: a disk of the machine that no fault touches.
        sink: shared by all drivers.
    """

    def __init__(self, machine: Disk, checkpoint: str, program: Program, sink: SinkLog, rows: int) -> None:
        self._machine = machine
        self._checkpoint = checkpoint
        self._program = program
        self._sink = sink
        self._rows = rows
        self._written: dict[bytes, Record] = {}
        self._places: dict[tuple[str, int, str], bytes] = {}
        self._synced: dict[str, int] = {}
        self._distrusted: dict[str, int] = {}
        self.acknowledged: dict[bytes, str] = {}

    def recall(self, encoded: bytes, *, published: bool) -> None:
        """Take in a record that a process which is gone had asked for, or had acknowledged."""
        record = records.decode_record(encoded)
        own = records.hash_of(encoded)
        if published:
            self._places[record.chain, record.epoch, record.kind] = own
            self.acknowledged[own] = f"{record.kind} {record.epoch} of '{record.chain}' ({record.generation})"
        else:
            self._written[own] = record

    def watch(self, driver: Driver) -> None:
        """Be told of everything this driver commits and deletes."""
        driver.on_append = self._see_append
        driver.on_published = self._see_published
        driver.on_deleting = self._see_deleting

    # -- at every step ------------------------------------------------------------------------------------------------

    def see_sync(self, path: str) -> None:
        """A sync was reported as done."""
        require(path not in self._distrusted, f"{path} was synced again after a sync of it had failed")
        self._synced[path] = self._machine.size(path) or 0

    def see_failed_sync(self, path: str) -> None:
        """A sync failed: nothing behind the last good one may ever be relied on."""
        self._distrusted[path] = self._synced.get(path, 0)

    def _see_append(self, driver: Driver, encoded: bytes) -> None:
        self._written[records.hash_of(encoded)] = records.decode_record(encoded)

    def _see_published(self, driver: Driver, encoded: bytes) -> None:
        """A record was acknowledged: nobody else ever had its place."""
        record = records.decode_record(encoded)
        own = records.hash_of(encoded)
        place = (record.chain, record.epoch, record.kind)
        first = self._places.setdefault(place, own)
        require(first == own, f"two records are {record.kind} {record.epoch} of '{record.chain}'")
        require(own in self._written, f"{place} was published and never appended")
        self.acknowledged[own] = f"{record.kind} {record.epoch} of '{record.chain}' ({record.generation})"
        self._check_synced(record, place)
        named = set().union(*map(records.files_of, record.parts), records.files_of_batch(record.batch))
        gone = [name for name in named if self._machine.size(paths.data_file(self._checkpoint, name)) is None]
        if gone:
            lost = set(gone) & self.read_live()
            require(not lost, f"{sorted(lost)} were gone when {place} was acknowledged")

    def _check_synced(self, record: Record, place: object) -> None:
        for part in record.parts:
            for extent in records.extents_of(part):
                path = paths.data_file(self._checkpoint, extent.file)
                durable = self._distrusted.get(path, self._synced.get(path))
                if durable is None:
                    continue  # nobody watches the syncs of this disk
                require(
                    extent.offset + extent.length <= durable,
                    f"{place} names bytes of {path} that no sync vouches for",
                )

    def _see_deleting(self, driver: Driver, doomed: list[str]) -> None:
        """Files are about to be deleted: none of them is named by what a driver that starts now reads, nor by what it
        has asked to be copied."""
        names = {path.rpartition("/")[2] for path in doomed}
        reachable = names & self.read_live()
        require(not reachable, f"generation {driver.generation} deletes reachable {sorted(reachable)}")
        copied = names & driver.engine.placing.copies.files()
        require(
            not copied, f"generation {driver.generation} deletes {sorted(copied)}, of which copies are made"
        )

    def read_live(self) -> set[str]:
        """Return the log part that a driver reads that starts at this moment, and the files it names."""
        tail = read_tail(self._machine, self._checkpoint)
        if tail.base is None or tail.part is None:
            return set()
        chains = Chains(self._program)
        chains.load(tail.base, tail.records)
        return chains.live_files() | {paths.log("", tail.part).rpartition("/")[2]}

    def check_start(self, driver: Driver) -> None:
        """A driver has read the checkpoint: everything ever acknowledged is in what it read."""
        known = {own for line in self._lines(driver).values() for own in line}
        lost = [what for own, what in self.acknowledged.items() if own not in known]
        require(not lost, f"generation {driver.generation} does not know {lost[:3]}")

    def check_failure(self, error: PenstockError) -> None:
        """Only a fault of the weather, or another driver, may end one."""
        excused = type(error) in (StorageError, CheckpointError, FencedError)
        require(excused, f"a driver ended with {type(error).__name__}: {error}")

    def _lines(self, driver: Driver) -> dict[str, list[bytes]]:
        """Hashes of the records of every chain, oldest first, as far as this driver knows them."""
        lines: dict[str, list[bytes]] = {}
        for name, chain in driver.engine.chains.by_name.items():
            line: list[bytes] = []
            at = chain.hash
            while at != records.NO_HASH:
                require(at in self._written, f"'{name}' holds a record that nobody wrote")
                line.append(at)
                at = self._written[at].previous
            lines[name] = line[::-1]
        return lines

    # -- at the end ---------------------------------------------------------------------------------------------------

    def check_schedule(self, driver: Driver) -> None:
        """The committed schedule of a drained run gives, in the simple model, what the run gave."""
        self.check_start(driver)
        model = Model(self._program)
        chains = driver.engine.chains
        model.replay(
            {name: [self._written[own] for own in line] for name, line in self._lines(driver).items()},
            {name: chain.epoch for name, chain in chains.by_name.items()},
        )
        model.check_end(self._rows)
        for name, spec in self._program.stages.items():
            owned = [shard for chain in chains.of(name) for shard in chain.shards().tolist()]
            every = list(range(spec.shards))
            require(sorted(owned) == every, f"not every shard of '{name}' is in one chain: {owned}")
        for name, chain in chains.by_name.items():
            if chain.spec.kind == "operator":
                for shard in chain.shards().tolist():
                    same = chain.digest(shard) == model.digest(operator_of(name), shard)
                    require(same, f"the state of '{name}', shard {shard} is not the model's")
        self._check_sink(model)

    def _check_sink(self, model: Model) -> None:
        for generation, epoch, table in self._sink.calls:
            rows = [tuple(row.values()) for row in table.to_pylist()]
            same = model.sink_rows.get(epoch) == rows
            require(same, f"sink epoch {epoch} of generation {generation} holds other rows")
        handed = {epoch for _, epoch, _ in self._sink.calls}
        require(handed == set(model.sink_rows), "a sink epoch was done and never handed over")
        ids = sorted(row[0] for rows in model.sink_rows.values() for row in rows)
        require(ids == list(range(self._rows)), "the sink did not get every row exactly once")

    def check_leftovers(self) -> None:
        """Right after a start: nothing half written is left of those before it."""
        for folder in (self._checkpoint, paths.drivers(self._checkpoint)):
            left = [name for name in self._machine.list(folder) if is_temp(name) or name.startswith(PROBE)]
            require(not left, f"half-written files in {folder}: {left}")

    def check_files(self, driver: Driver) -> None:
        """After two rounds of clean-up, nothing is left that nobody needs."""
        live = driver.engine.chains.live_files()
        left = [name for name in self._machine.list(paths.data(self._checkpoint)) if name not in live]
        held = driver.engine.leases
        orphans = [
            name for name in left if (file := paths.parse_data(name)) is None or file.writer not in held
        ]
        require(not orphans, f"orphans after two rounds of clean-up: {orphans}")
        pointer = paths.newest_log("").rpartition("/")[2]
        logs = [name for name in self._machine.list(paths.logs(self._checkpoint)) if name != pointer]
        require(len(logs) == 1, f"more than the newest log part is left: {logs}")


def check_owners(driver: Driver, whole: bool = False) -> None:
    """No two leases that a driver holds have one environment, and what it takes as held somebody has.

    Args:
        whole: nothing is under way, so that every shard has one owner.
    """
    owners: dict[str, str] = {}
    shards: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for lease in driver.live_leases():
        for stage, task, shard, name in driver.leases[lease].owned():
            require(name not in owners, f"{name} is owned by {owners.get(name)} and by {lease}")
            owners[name] = lease
            shards.setdefault((stage, shard), []).append((lease, task))
    for stage, run in driver.engine.runs.items() if whole else ():
        for shard in run.shards.mine().tolist() if run.spec.stateful else ():
            slot = run.slots[int(run.task_of[shard])]
            found = shards.get((stage, shard), [])
            require(
                found == [(slot.lease, slot.index)],
                f"shard {shard} of '{stage}' belongs to {slot.lease} and is held by {found}",
            )
