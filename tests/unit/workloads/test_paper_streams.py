"""The papers' applications on the real engine, in process, against counts by brute force."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from penstock.testing import run
from penstock.testing.declared import compile_stream
from penstock.workloads import paper_streams as app
from penstock.workloads.paper_topologies import TOPOLOGIES, derive_rates


def last(rows: list[dict[str, Any]], key: str, value: str) -> dict[Any, Any]:
    """Return the last value of each key."""
    return {row[key]: row[value] for row in rows}


def result(name: str, limit: int) -> list[dict[str, Any]]:
    return run(app.STREAMS[name](limit=limit)).to_pylist()


def test_commcount_counts_every_view_by_category() -> None:
    views = [int(row["text"].split(",")[1]) for row in app.rows_of(app.visits, 400)]
    assert last(result("commcount", 400), "category", "total") == Counter(v % app.CATEGORIES for v in views)


def test_top_n_ends_with_the_commodities_sold_most() -> None:
    lines = [row["text"].split(",") for row in app.rows_of(app.visits, 600)]
    sold = Counter(int(commodity) for _, commodity, done in lines if done == "buy")
    best = [count for _, count in sold.most_common(app.TOP)]
    found = last(result("top-n", 600), "commodity", "sold")
    assert sorted(found.values(), reverse=True)[: app.TOP] == best
    assert all(sold[commodity] == count for commodity, count in found.items() if count >= best[-1])


def test_split_count_counts_every_word() -> None:
    words = Counter(word for row in app.rows_of(app.sentences, 200) for word in row["text"].split())
    assert last(result("split-count", 200), "word", "seen") == words


def test_frequent_patterns_reports_what_is_frequent_and_the_loop_takes_back_what_is_covered() -> None:
    seen: Counter[str] = Counter()
    for row in app.rows_of(app.tweets, 500):
        items = row["items"].split(",")
        seen.update({",".join(pair) for pair in combinations(items, 2)} | {row["items"]})
    frequent = {pattern for pattern, count in seen.items() if count >= app.FREQUENT}
    covered = {
        ",".join(part)
        for pattern in frequent
        if pattern.count(",") == 2
        for part in combinations(pattern.split(","), 2)
    }
    found = last(result("frequent-patterns", 500), "pattern", "maximal")
    assert set(found) == frequent and covered & frequent, "the load must use the loop"
    assert {pattern for pattern, maximal in found.items() if not maximal} == covered & frequent


def test_logo_detection_counts_the_matches_of_every_frame() -> None:
    expected = {}
    for row in app.rows_of(app.frames, 40):
        features = [(row["seed"] * 31 + n * 7919) % 997 for n in range(app.FEATURES)]
        matches = sum(feature % 5 == 0 for feature in features)
        expected.update({row["frame"]: matches} if matches else {})
    assert last(result("logo-detection", 40), "frame", "found") == expected


@pytest.mark.parametrize("name", app.STREAMS)
def test_a_stream_has_the_stations_of_its_model(name: str) -> None:
    nodes, _ = compile_stream(app.STREAMS[name](limit=10), "test", None)
    assert {one.name for one in TOPOLOGIES[name].stations} <= {node.name for node in nodes}


def test_rows_multiply_on_the_way_as_the_model_says() -> None:
    """Features a frame and words a sentence are what makes the loads of the stations."""
    assert derive_rates(TOPOLOGIES["logo-detection"], 1.0)["match"] == app.FEATURES
    assert derive_rates(TOPOLOGIES["split-count"], 1.0)["count"] == app.WORDS_A_SENTENCE
