"""Options are read by their table, refused by name, and documented as they are."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.dataplane.settings import Settings
from penstock.errors import DeclarationError
from penstock.topology.options import (
    MAX_EPOCH_ROWS,
    OPTIONS,
    RETAIN_ALL,
    TAKEOVER,
    derive_settings,
    find_option,
    merge_settings,
    options_table,
)
from penstock.topology.writer import FORMATS, StreamWriter

DOCS = Path(__file__).parents[3] / "docs" / "options.md"
SINKS = DOCS.parent / "sinks.md"


def writer() -> StreamWriter:
    def rows(first: int, count: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"k": list(range(first, first + count))})

    return penstock.generate(rows, schema="k bigint", rate=1).groupBy("k").count().writeStream.format("noop")


def declared(**options: object) -> dict[str, object]:
    return writer().options(checkpointLocation="/c", **options).declare().options


def test_the_reference_page_has_the_table_as_it_is_in_code() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## Of a query\n")[2].partition("\n## ")[0]
    table = "".join(line for line in section.splitlines(keepends=True) if line.startswith("|"))
    assert table == options_table()


@pytest.mark.parametrize("sink", ["parquet", "console"])
def test_the_page_on_sinks_has_the_options_of_each_as_they_are_in_code(sink: str) -> None:
    table = options_table(sink)
    assert table.count("\n") > 3
    assert table in SINKS.read_text(encoding="utf-8")


def test_every_option_of_a_sink_belongs_to_a_format() -> None:
    assert {option.sink for option in OPTIONS.values()} - {None} <= set(FORMATS)


def test_every_option_that_sets_a_setting_has_its_default_there() -> None:
    defaults = {field.name: field.default for field in fields(Settings)}
    for option in OPTIONS.values():
        if option.setting is not None:
            assert defaults[option.setting] == option.default
            assert type(defaults[option.setting]) is type(option.default)


def test_options_that_are_given_reach_the_settings_and_the_others_keep_their_defaults() -> None:
    given = declared(
        maxEpochRows="10", minEpochSeconds=0.5, memoryBytes=1 << 20, retainAll="true", takeover="true"
    )
    expected = replace(Settings(), max_epoch_rows=10, min_epoch_s=0.5, memory_bytes=1 << 20, retain_all=True)
    assert Settings(**derive_settings(given)) == expected


@pytest.mark.parametrize("given", [True, "true", "True", "TRUE", " true "])
def test_true_may_be_a_boolean_or_a_word_in_any_case(given: object) -> None:
    assert TAKEOVER.of(declared(takeover=given)) is True


@pytest.mark.parametrize("given", [False, "false", "False", "FALSE"])
def test_false_may_be_a_boolean_or_a_word_in_any_case(given: object) -> None:
    assert TAKEOVER.of(declared(takeover=given)) is False


def test_an_option_that_is_not_given_has_its_default() -> None:
    assert TAKEOVER.of(declared()) is False
    assert RETAIN_ALL.of(declared()) is False
    assert MAX_EPOCH_ROWS.of(declared()) == 2_000_000


@pytest.mark.parametrize("given", ["yes", "1", 1, 0, "", None, "truee"])
@pytest.mark.parametrize("name", ["takeover", "retainAll"])
def test_what_is_no_boolean_is_refused_by_name(name: str, given: object) -> None:
    with pytest.raises(DeclarationError, match=rf"option '{name}' must be true or false, not {given!r}\."):
        declared(**{name: given})


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("maxEpochRows", "many", "a whole number"),
        ("maxEpochRows", "1.5", "a whole number"),
        ("maxEpochRows", True, "a whole number"),
        ("maxEpochRows", 0, "greater than 0"),
        ("memoryBytes", -1, "greater than 0"),
        ("maxEpochSeconds", "soon", "a number"),
        ("maxEpochSeconds", "nan", "a number"),
        ("leaseTimeoutSeconds", "inf", "a number"),
        ("minEpochSeconds", "0", "greater than 0"),
        ("checkpointLocation", None, "a path"),
        ("checkpointLocation", 5, "a path"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_is_wanted(
    name: str, given: object, wanted: str
) -> None:
    with pytest.raises(DeclarationError, match=rf"option '{name}' must be {wanted}, not {given!r}\."):
        writer().option(name, given)


def test_names_are_not_case_sensitive_and_a_path_may_be_an_object() -> None:
    found = writer().option("CHECKPOINTLOCATION", Path("/c")).option("maxepochrows", 7).declare().options
    assert found == {"checkpointLocation": "/c", "maxEpochRows": 7}


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        DeclarationError, match=r"option 'maxEpochRow' is unknown; did you mean 'maxEpochRows'\?"
    ):
        find_option("maxEpochRow")
    with pytest.raises(DeclarationError, match=r"'MAXEPOCHROW' is unknown; did you mean 'maxEpochRows'\?"):
        find_option("MAXEPOCHROW")
    with pytest.raises(DeclarationError, match=r"'xyz' is unknown; known options: checkpointLocation, .*"):
        find_option("xyz")


def test_a_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(DeclarationError, match="the name of an option is a string, not 5"):
        writer().option(5, "x")  # type: ignore[arg-type]


def test_a_query_without_a_checkpoint_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"option\('checkpointLocation', ...\) is required"):
        writer().declare()


CONF = {"spark.app.name": "x", "spark.penstock.cores": "2"}


def test_settings_of_the_session_supply_the_options_that_were_not_given() -> None:
    merged = merge_settings(
        {"checkpointLocation": "/c", "maxEpochRows": 7},
        {**CONF, "spark.penstock.maxEpochRows": "9", "spark.penstock.minepochseconds": "0.5"},
        None,
    )
    assert merged == {"checkpointLocation": "/c", "maxEpochRows": 7, "minEpochSeconds": 0.5}


def test_an_unknown_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        DeclarationError,
        match=r"setting 'spark.penstock.maxEpochRow' is unknown; did you mean 'spark.penstock.maxEpochRows'\?",
    ):
        merge_settings({"checkpointLocation": "/c"}, {"spark.penstock.maxEpochRow": "9"}, None)


def test_a_setting_of_another_kind_is_refused_by_its_full_name() -> None:
    with pytest.raises(DeclarationError, match=r"setting spark.penstock.takeover: .* must be true or false"):
        merge_settings({"checkpointLocation": "/c"}, {"spark.penstock.takeover": "maybe"}, None)


def test_a_checkpoint_in_the_settings_is_a_root_with_a_folder_for_each_query() -> None:
    root = {**CONF, "spark.penstock.checkpointLocation": "/all/"}
    assert merge_settings({}, root, "sales")["checkpointLocation"] == "/all/sales"
    assert merge_settings({"checkpointLocation": "/c"}, root, "sales")["checkpointLocation"] == "/c"
    with pytest.raises(DeclarationError, match=r"call queryName\(...\)"):
        merge_settings({}, root, None)
    with pytest.raises(DeclarationError, match="cannot be the name of a folder"):
        merge_settings({}, root, "a/b")
    with pytest.raises(DeclarationError, match=r"option\('checkpointLocation', ...\) is required"):
        merge_settings({}, CONF, "sales")


def test_a_path_may_begin_with_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    for name in ("checkpointLocation", "path", "journal"):
        assert find_option(name).read("~/x") == "/home/ann/x"
        assert find_option(name).read("file:/x/~y") == "file:/x/~y"
    merged = merge_settings({}, {"spark.penstock.checkpointLocation": "~/root"}, "counts")
    assert merged["checkpointLocation"] == "/home/ann/root/counts"
