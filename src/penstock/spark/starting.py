"""What `start()` does: wires declaration, checkpoint, shell, ingest and sinks together, and hands out the query.

A start that fails at any point gives the checkpoint back; nothing of the protocol is here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.control.policy.registry import DEFAULT, make_policy_for
from penstock.dataplane.compile import compile_program
from penstock.dataplane.disk import Disk, PosixDisk, check_scheme
from penstock.dataplane.exports import ExportFolder, add_exports, exported_by
from penstock.dataplane.holding import give_back
from penstock.dataplane.importing import with_imported
from penstock.dataplane.opening import Opened, open_checkpoint
from penstock.dataplane.settings import Settings
from penstock.dataplane.sourcing import Arrivals
from penstock.errors import PenstockError, SessionError
from penstock.spark.batch_ingest import BatchIngest
from penstock.spark.closures import check_closures
from penstock.spark.ctrl_c import take_over
from penstock.spark.ingest import Ingest
from penstock.spark.interpreters import check_interpreter
from penstock.spark.interrupts import whole_or_undone
from penstock.spark.journal_file import check_journal
from penstock.spark.leases import reason_in
from penstock.spark.processors import with_zone
from penstock.spark.progress import Identity
from penstock.spark.query import Query
from penstock.spark.running import make_way
from penstock.spark.session import check_session
from penstock.spark.shell import SparkShell
from penstock.spark.sinks import check_sink, kinds_of, make_sinks, sink_settings, with_sink_settings
from penstock.spark.slots import await_slots, is_local, real_cores
from penstock.topology.options import (
    CHECKPOINT_LOCATION,
    CONTROL_SECONDS,
    EXECUTORS,
    EXPORT,
    EXPORT_BYTES,
    JOURNAL,
    MAX_NODES,
    TAKEOVER,
    derive_settings,
    merge_settings,
)
from penstock.topology.writer import Declared, sources_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESERVE = 1


def start(declared: Declared, spark: SparkSession | None) -> Query:
    """Start a declared query on a SparkSession."""
    spark = spark or _active_session()
    take_over()
    check_session(spark)
    check_interpreter(spark)
    await_slots(spark)
    options = merge_settings(declared.options, spark.conf.getAll, declared.name)
    declared = replace(declared, options=options)
    checkpoint = check_scheme(CHECKPOINT_LOCATION.of(options))
    for one in (declared, *declared.also):
        check_sink(one, checkpoint)
    if declared.sla is not None:
        # What is wrong with it is said before anything runs.
        make_policy_for(declared.sla, declared.policy or DEFAULT, **declared.policy_options)
        check_journal(_journal_of(declared))
    settings = Settings(**_settings_of(declared))
    declared = declared.with_root(with_imported(declared.root, PosixDisk(), checkpoint))
    program = compile_program(
        declared.node,
        tasks=real_cores(spark),
        memory_bytes=settings.memory_bytes,
        also={str(one.name): one.node for one in declared.also},
        executors=EXECUTORS.of(options),
    )
    check_closures(program, declared.root)
    program = with_sink_settings(program, declared.also)
    program = with_zone(program, str(spark.conf.get("spark.sql.session.timeZone")))
    program = add_exports(program, EXPORT.of(options))
    disk = PosixDisk()
    takeover = TAKEOVER.of(declared.options)
    make_way(declared.name, checkpoint, takeover)
    opened = whole_or_undone(
        lambda: open_checkpoint(
            disk,
            checkpoint,
            program,
            takeover=takeover,
            beside=_journal_of(declared),
            fresh_s=settings.holder_fresh_s,
        ),
        lambda opened: give_back(disk, checkpoint, opened.claim, time.time(), None),
    )
    try:
        return _start_on(opened, declared, spark, settings)
    except BaseException as error:
        told = _give_back(disk, opened, error)
        if told is error:
            raise
        raise told from error


def _give_back(disk: Disk, opened: Opened, error: BaseException) -> BaseException:
    """Give the checkpoint back after a start that failed; return what to tell: who took it over, where somebody did, and
    Spark's own errors in our words."""
    told = error
    if type(error).__module__.startswith(("py4j.", "pyspark.")):
        told = SessionError(f"Spark failed while the query was started: {reason_in(str(error))}")
    ours = told if isinstance(told, PenstockError) else None
    return give_back(disk, opened.checkpoint, opened.claim, time.time(), ours) or told


def _start_on(opened: Opened, declared: Declared, spark: SparkSession, settings: Settings) -> Query:
    """Start a query on a checkpoint that is claimed."""
    disk, checkpoint, program = PosixDisk(), opened.checkpoint, opened.program
    query = Query(declared.name)
    query.id, query.checkpoint = opened.query, checkpoint
    sources = sources_of(declared.root)
    kinds = {node.name: node.kind for node in sources}
    query._reports.identity = Identity(query.id, query.runId, query.name, declared.sink, kinds)
    query._schema = declared.node.schema
    query._sinks = kinds_of(declared)
    query._spark = spark
    sinks = make_sinks(declared, spark, opened, query._remember)
    ingested = [node for node in sources if node.kind == "dataframe"]
    shell = SparkShell(
        spark,
        program,
        opened,
        disk,
        settings,
        hosts=_hosts(spark),
        label=declared.name or declared.node.name,
        reserve=RESERVE + (1 if ingested else 0),
        sinks=sinks,
        exports=_open_exports(disk, opened, EXPORT_BYTES.of(declared.options)),
        on_end=query._ended,
    )
    query._shell = shell
    trigger = declared.trigger
    for node in sources:
        if node.kind == "generate":
            shell.engine.sources.set_arrivals(node.name, Arrivals(node.rate, node.limit))
        elif node.bounded:
            query._ingests.append(BatchIngest(shell, node.name, node.dataframe, node.schema, node.stamp))
        else:
            query._ingests.append(
                Ingest(shell, node.name, node.dataframe, node.schema, node.stamp, trigger.for_spark())
            )
    if trigger.ends or all(node.bounded for node in sources):
        shell.sources_ended = lambda: all(ingest.finished for ingest in query._ingests)
    try:
        for ingest in query._ingests:
            ingest.prepare()
        shell.start()
        for ingest in query._ingests:
            ingest.start()
        _hold_bound(query, declared)
        query._begin()
    except BaseException:
        query.stop()
        raise
    return query


def _hold_bound(query: Query, declared: Declared) -> None:
    query.elasticity.journal = _journal_of(declared)
    query.elasticity.every_s = CONTROL_SECONDS.of(declared.options)
    query.elasticity.max_nodes = MAX_NODES.of(declared.options)
    if declared.sla is not None:
        query.elasticity.hold(declared.sla, declared.policy or DEFAULT, **declared.policy_options)


def _journal_of(declared: Declared) -> str:
    given = JOURNAL.of(declared.options)
    return check_scheme(given, "The journal") if given else ""


def _open_exports(disk: Disk, opened: Opened, keep_bytes: int) -> dict[str, ExportFolder]:
    found = {}
    for name, spec in opened.program.stages.items():
        exported = exported_by(name)
        if exported is not None:
            found[name] = ExportFolder(
                disk, opened.checkpoint, exported, spec.schema, keep_bytes, spec.inputs[0].older
            )
            found[name].open(opened.query)
    return found


def _active_session() -> SparkSession:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        raise SessionError(
            "there is no SparkSession; call penstock.session() first, or pass yours to start(spark)."
        )
    return active


def _settings_of(declared: Declared) -> dict[str, Any]:
    found = {**derive_settings(declared.options), **sink_settings(declared)}
    if declared.trigger.interval_s is not None:
        # What gathers between two epochs must fit into one, whatever time that takes.
        longest = found.get("max_epoch_s", Settings.max_epoch_s)
        found["min_epoch_s"] = declared.trigger.interval_s
        found["max_epoch_s"] = max(longest, declared.trigger.interval_s)
    return found


def _hosts(spark: SparkSession) -> tuple[str, str]:
    """Return where Spark's driver binds and how executors reach it; ours does the same."""
    if is_local(spark):
        return "127.0.0.1", "127.0.0.1"
    conf = spark.sparkContext.getConf()
    host = str(conf.get("spark.driver.host") or "127.0.0.1")
    return str(conf.get("spark.driver.bindAddress") or host), host
