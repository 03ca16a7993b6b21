"""A query shows itself as a line and as a small table; what users wrote is escaped."""

from __future__ import annotations

from penstock.spark.showing import Shown, show_bytes, show_html, show_line, show_ms

REPORT = {
    "batchId": 12,
    "processedRowsPerSecond": 40_000.4,
    "operators": {
        "counts": {
            "rowsPerSecond": 39_000.0, "latencyP99Ms": 12.34, "stateBytes": 3 << 20, "tasks": 2, "waitingRows": 1_500,
        },
        "late<r": {"rowsPerSecond": 0.0, "latencyP99Ms": None, "stateBytes": 0, "tasks": 2, "waitingRows": 0},
    },
}  # fmt: skip


def test_a_running_query_shows_rate_latency_and_state_in_one_line() -> None:
    shown = Shown("sales", "running", "/c", None, REPORT)
    expected = "<penstock.Query sales: running, 40,000 rows/s, latency 12.3 ms, state 3.0 MiB, sink epoch 12>"
    assert show_line(shown) == expected


def test_a_failed_query_shows_its_error_and_one_without_a_report_its_state() -> None:
    assert show_line(Shown("x", "failed", "/c", "it broke", REPORT)) == "<penstock.Query x: failed, it broke>"
    assert show_line(Shown("x", "running", "/c", None, None)) == "<penstock.Query x: running>"


def test_the_table_has_the_query_and_its_operators_escaped() -> None:
    table = show_html(Shown("a<b", "failed", "/c", "x & y", REPORT))
    for part in (
        "a&lt;b",
        "failed",
        "12.3 ms",
        "3.0 MiB",
        "x &amp; y",
        "late&lt;r",
        "no rows yet",
        "1,500",
        "/c",
    ):
        assert f">{part}</td>" in table, part
    assert show_html(Shown("a", "running", "/c", None, None)).count("<table>") == 1


def test_sizes_and_times_are_written_for_people() -> None:
    assert [show_bytes(n) for n in (0, 1023, 1024, 5 << 30, 3 << 41)] == [
        "0 B", "1,023 B", "1.0 KiB", "5.0 GiB", "6.0 TiB",
    ]  # fmt: skip
    assert show_ms(1234.56) == "1,234.6 ms"
