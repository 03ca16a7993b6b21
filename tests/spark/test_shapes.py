"""A split, a union, a broadcast, a station, a join and a loop on Spark, against plain Spark on the same rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from tests.scenario import shapes

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Workers on a cluster cannot import the tests, so what they define travels by value.
cloudpickle.register_pickle_by_value(shapes)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 4000


def test_a_topology_of_all_shapes_gives_what_plain_spark_gives(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    made = {
        "orders": pa.Table.from_batches([shapes.make_orders(0, ROWS)]),
        "payments": pa.Table.from_batches([shapes.make_payments(0, ROWS // 2)]),
        "rules": pa.Table.from_batches([shapes.make_rules(0, 20)]),
    }
    streams = [penstock.from_rows(table, name=name) for name, table in made.items()]
    query = (
        shapes.flow(*streams)
        .writeStream.format("memory")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(spark)
    )
    assert query.awaitTermination(120), "a query over bounded sources ends by itself"
    ours = {(row["kind"], row["user"]): (row["count"], row["amount"]) for row in query.table().to_pylist()}

    orders, payments = spark.createDataFrame(made["orders"]), spark.createDataFrame(made["payments"])
    scored = orders.withColumn("amount", f.col("amount") * 2)
    joined = scored.join(payments.select("id"), "id").groupBy("user").agg(f.count("*"), f.sum("amount"))
    ruled = scored.where("amount >= 100").groupBy("user").agg(f.count("*"), f.sum("amount"))
    for kind, frame in (("joined", joined), ("ruled", ruled)):
        theirs = {row[0]: (row[1], row[2]) for row in frame.collect()}
        assert {user: value for (of, user), value in ours.items() if of == kind} == theirs
    walked = {key: value for key, value in shapes.model(ROWS, ROWS // 2).items() if key[0] == "walked"}
    assert {key: value for key, value in ours.items() if key[0] == "walked"} == walked


def test_a_call_that_raises_is_taken_back_and_goes_to_the_dead_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    def add(key: Any, rows: list[Any], state: Any) -> list[tuple[int, int]]:
        total = state.total.get() or 0
        for row in rows:
            total += row.amount
            state.total.update(total)
            if row.amount < 0:
                raise ValueError(f"amount {row.amount} of {row.id}")
        return [(key.user, total)]

    bad = penstock.from_rows(
        [(1, 7, 10), (2, 8, -5), (3, 8, 2)], schema="id long, user long, amount long", name="first"
    )
    summed = bad.groupBy("user").apply_rows(
        add,
        schema="user long, total long",
        state={"total": penstock.ValueState("long")},
        name="add",
        on_error="dead_letter",
    )
    checkpoint = str(tmp_path / "checkpoint")
    writer = summed.writeStream.format("memory").option("checkpointLocation", checkpoint)
    query = writer.also("letters", summed.dead_letters.writeStream.format("memory")).start(spark)
    assert query.awaitTermination(60)
    assert query.table().to_pylist() == [{"user": 7, "total": 10}]
    (letter,) = query.table("letters").to_pylist()
    assert (letter["operator"], letter["key"], letter["error"]) == (
        "add",
        "[8]",
        "ValueError: amount -5 of 2",
    )
    assert "raise ValueError" in letter["traceback"]
    assert [row.key for row in spark.sql("select key from letters").collect()] == ["[8]"]
    assert letter["rows"] == ['{"id": 2, "user": 8, "amount": -5}', '{"id": 3, "user": 8, "amount": 2}']


def test_rows_that_are_kept_local_come_through_like_any_others(spark: SparkSession, tmp_path: Path) -> None:
    rows = penstock.from_rows(pa.Table.from_batches([shapes.make_orders(0, ROWS)]), name="orders")
    stream = rows.map(shapes.score, schema="id long, user long, amount long").station(
        "score", cores=2, keep_local=True
    )
    query = (
        stream.writeStream.format("memory")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(spark)
    )
    assert query.awaitTermination(60)
    found = sorted((row["id"], row["amount"]) for row in query.table().to_pylist())
    assert found == [(number, 2 * shapes.order(number)[2]) for number in range(ROWS)]


def test_a_loop_drains_while_its_source_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    orders = penstock.generate(shapes.make_orders, schema=shapes.ORDERS, rate=2000, name="orders", limit=2000)
    ring = penstock.loop("again", schema="id long, user long, amount long, hops long")
    walked = (
        orders.withColumn("hops", penstock.col("id") * 0)
        .union(ring)
        .groupBy("user")
        .apply_rows(
            shapes.walk,
            schema="id long, user long, amount long, hops long",
            state={"seen": penstock.ValueState("long")},
            name="walked",
            shards=16,
        )
    )
    ring.feed(walked.filter(penstock.col("hops") < shapes.HOPS))
    done = walked.filter(penstock.col("hops") >= shapes.HOPS)
    query = (
        done.writeStream.format("memory")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(spark)
    )
    query.processAllAvailable()
    assert sorted(row["id"] for row in query.table().to_pylist()) == list(range(2000))
    query.stop()
