"""What Spark planned for the batches of one source, on both sides: kept with our records, and in Spark's own folder.

Looks at the folder, lets `judging` decide, and carries that out: puts the folder back, or refuses it by name. Keeps the
plan of each batch before its record. Never runs a Spark query, and changes the folder only before one begins.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial

import msgspec

from penstock.dataplane import paths, recordlog
from penstock.dataplane.batch_plans import PlanKeeper, read_kept
from penstock.dataplane.disk import Disk, IrregularFileError
from penstock.dataplane.imported import read_manifests
from penstock.dataplane.opening import Opened
from penstock.dataplane.records import Batch, BatchPlan
from penstock.errors import CheckpointError
from penstock.spark import ingest_folder
from penstock.spark.ingest_tears import sums_of
from penstock.spark.judging import (
    METADATA,
    OF_A_BATCH_DATAFRAME,
    REFUSALS,
    Found,
    Judgement,
    Turn,
    Verdict,
    judge_folder,
    judge_turn,
    needs_metadata,
    refusal,
)
from penstock.words import listed

_log = logging.getLogger("penstock")


class Planned:
    """The plans of one source of a checkpoint that this driver owns."""

    def __init__(self, disk: Disk, opened: Opened, source: str) -> None:
        self.folder = paths.ingest(opened.checkpoint, source)
        self.told: str | None = None
        """That the folder was put back, until Spark has gone on from there."""
        self._disk = disk
        self._opened = opened
        self._source = source
        self._kept = partial(read_kept, disk, opened.checkpoint)
        self._keeper = PlanKeeper(disk, opened.checkpoint, opened.claim.generation, self.folder)
        self._settled: set[str] = set()
        self._imported: frozenset[int] | None = None

    def prepare(self, known: Batch | None) -> None:
        """Bring Spark's folder to where the log is, before a Spark query begins on it.

        Raises:
            CheckpointError: it says more than the log, or something else, or cannot be put back.
            FencedError: another driver has the checkpoint, and the folder is its own.
        """
        if known is not None and known.query == OF_A_BATCH_DATAFRAME:
            raise CheckpointError(
                f"source '{self._source}' was a batch DataFrame in this checkpoint and is a streaming DataFrame now; give "
                "it another name, or start with an empty checkpointLocation."
            )
        with self._naming_files():
            self._bring_in_line(known, self._look(known))
            self._drop_stray_sums()

    def _bring_in_line(self, known: Batch | None, found: Found) -> None:
        judged = judge_folder(known, found, self._imported_batches())
        self._check(known, judged)
        if judged.verdict is Verdict.PUT_BACK and known is not None and known.plan is not None:
            self._check_claim()
            ingest_folder.put_back(self._disk, self.folder, known.plan, self._kept)
            self.told = f"The ingest of '{self._source}' was put back to batch {known.number}"
            self._warn(judged, f"it is put back to batch {known.number}, after which Spark goes on")
        elif judged.verdict is Verdict.MEND and known is not None:
            lost = METADATA if needs_metadata(found) else None
            files = known.plan.files if known.plan is not None else []
            again = [(file.path, self._kept(file)) for file in files if file.path == lost]
            self._check_claim()
            ingest_folder.mend(self._disk, self.folder, found.droppable, again)
            mended = [
                *(f"{path} is dropped" for path in found.droppable),
                *([f"{lost} are put back"] if lost else []),
            ]
            self._warn(judged, f"{listed(mended)}, and Spark goes on after batch {known.number}")
        elif judged.verdict is Verdict.CLEAR:
            self._check_claim()
            ingest_folder.clear(self._disk, self.folder)
            self._warn(judged, "no batch is committed, and Spark plans the first one anew")

    def _warn(self, judged: Judgement, done: str) -> None:
        _log.warning("source '%s': %s %s; %s.", self._source, self.folder, judged.what, done)

    def judge(self, known: Batch | None, batch: Batch) -> Turn:
        """Decide whether a batch that Spark runs counts.

        Raises:
            CheckpointError: it is neither the next one nor the last one again, or it is the last one with another plan.
        """
        if known is not None and known.query != batch.query:
            self._check(known, self._judge(known))
        turn = judge_turn(known, batch.number, self._imported_batches())
        if turn is Turn.OUT_OF_TURN:
            last = f"{known.number} is the last one" if known is not None else "no batch is"
            raise CheckpointError(
                f"source '{self._source}': Spark runs batch {batch.number} of {self.folder}, but {last} that is committed, "
                "so rows would be lost; stop what changes that folder, and start the query again to have it put right."
            )
        if turn is Turn.AGAIN:
            self._check_same(known)
        return turn

    def keep(self, batch: Batch, writer: str, known: Batch | None) -> Batch:
        """Make durable what Spark planned for a batch; return the batch as its record names it.

        Args:
            writer: begins the names of the files that are written.
            known: the last committed batch.

        Raises:
            CheckpointError: a file of the plan is gone.
        """
        with self._naming_files():
            names = ingest_folder.files_planned(self.folder, batch.number)
            stateful = ingest_folder.is_stateful(self.folder)
        before = known.plan if known is not None else None
        try:
            if not {METADATA, f"offsets/{batch.number}"} <= set(names):
                raise FileNotFoundError
            files = self._keeper.keep(names, writer, before)
        except FileNotFoundError:
            raise CheckpointError(
                f"source '{self._source}': {self.folder} has lost what Spark planned for batch {batch.number}; do not "
                "delete from a checkpoint in use, and start the query again."
            ) from None
        if stateful:
            self._settle(names)
        return msgspec.structs.replace(batch, plan=BatchPlan(files, stateful))

    def query_id(self) -> str:
        """Return the id of the Spark query.

        Raises:
            CheckpointError: the folder does not say it any more.
        """
        with self._naming_files():
            found = ingest_folder.read_query_id(self.folder)
        if found is None:
            raise CheckpointError(
                f"source '{self._source}': {self.folder}/{METADATA} is gone or torn; do not delete from a "
                "checkpoint in use, and start the query again."
            )
        return found

    def _check_same(self, known: Batch | None) -> None:
        """Refuse the last committed batch where it holds other rows than were committed."""
        judged = self._judge(known)
        self._check(known, judged)
        if judged.verdict is not Verdict.GO_ON:
            raise CheckpointError(
                f"source '{self._source}': {self.folder} {judged.what}, though the query runs on it; stop what changes "
                "that folder, and start the query again to have it put back."
            )

    def _judge(self, known: Batch | None) -> Judgement:
        with self._naming_files():
            return judge_folder(known, self._look(known), self._imported_batches())

    def _look(self, known: Batch | None) -> Found:
        number, plan = (known.number, known.plan) if known is not None else (None, None)
        return ingest_folder.find(self.folder, number, plan, self._kept)

    @contextlib.contextmanager
    def _naming_files(self) -> Iterator[None]:
        """Turn what the operating system says of a file into an error that names it, and the source."""
        try:
            yield
        except OSError as error:
            path = error.filename or self.folder
            if isinstance(error, IrregularFileError):
                fix = "take it away, or put the file itself in its place"
            else:
                fix = "give this user access to it, or mend the disk"
            raise CheckpointError(
                f"source '{self._source}': {path} cannot be read ({error.strerror or error}); {fix}, and start the query "
                "again."
            ) from error

    def _check(self, known: Batch | None, judged: Judgement) -> None:
        if judged.verdict in REFUSALS:
            raise CheckpointError(refusal(self._source, self.folder, known, judged))

    def _drop_stray_sums(self) -> None:
        for path in ingest_folder.stray_sums(self.folder):
            ingest_folder.check_no_link(self.folder)
            self._check_claim()
            self._disk.delete(path)

    def _check_claim(self) -> None:
        recordlog.check_claim(self._disk, self._opened.checkpoint, self._opened.claim)

    def _imported_batches(self) -> frozenset[int]:
        """Last batches of the queries whose logs `penstock import` has copied here."""
        if self._imported is None:
            found = read_manifests(self._disk, self._opened.checkpoint)
            self._imported = frozenset(manifest.batch for manifest in found)
        return self._imported

    def _settle(self, names: list[str]) -> None:
        """Sync what Spark wrote for the batch: a folder with state cannot be put back, so it must not be lost."""
        found = {f"{self.folder}/{name}" for name in names}
        found |= {sums_of(path) for path in found}
        for path in sorted(found - self._settled):
            with contextlib.suppress(FileNotFoundError):  # not all have a checksum
                self._disk.settle(path)
        self._settled = found
