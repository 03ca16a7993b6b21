"""What stands for the names of pyspark.sql and pyspark.sql.functions that `penstock` has not: tables, and the error that
reads them. No engine here, and no import of PySpark, which need not be installed.
"""

from __future__ import annotations

from typing import Final, NoReturn

from penstock.suggesting import did_you_mean
from penstock.topology.substitutes import MissingMethodError

_BY_KEY: Final = "keep it in the state of groupBy(...).apply_rows(function, schema=..., state=...)"
_ORDERED: Final = (
    "streams have no order; number or sort rows in groupBy(...).apply_rows(...), or in foreachBatch(function)"
)
_SOURCE: Final = "build the DataFrame with spark.readStream and take it: penstock.from_dataframe(df)"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OF_OURS: Final[dict[str, str]] = {
    **dict.fromkeys(("count_distinct", "countDistinct", "approx_count_distinct", "approxCountDistinct"),
        "keep what was seen in state: groupBy(...).apply_rows(function, schema=..., "
        "state={'seen': penstock.MapState('string', 'boolean')}), where len(state.seen) is the count"),
    **dict.fromkeys(("sum_distinct", "sumDistinct"), _BY_KEY),
    **dict.fromkeys(("first", "first_value", "any_value"), _BY_KEY),
    "last_value": "use penstock.last(column)",
    **dict.fromkeys(("max_by", "min_by"), "use penstock.top_n(...), or " + _BY_KEY),
    **dict.fromkeys(("stddev", "stddev_pop", "stddev_samp", "std", "variance", "var_pop", "var_samp"),
        "aggregate the count, the sum and the sum of squares, and compute it of them with select(...)"),
    "count_if": "use penstock.sum of withColumn('hit', penstock.when(condition, 1).otherwise(0))",
    **dict.fromkeys(("column",), "use penstock.col(name)"),
    **dict.fromkeys(("expr", "sql", "call_function", "call_udf"),
        "SQL text is not taken; use expressions of penstock.col(...), or SQL on the DataFrame before "
        "penstock.from_dataframe(df)"),
    **dict.fromkeys(("udf", "arrow_udf"), "use stream.map(function, schema=...) for each row"),
    **dict.fromkeys(("pandas_udf", "PandasUDFType", "ArrowUDFType"),
        "use stream.map_arrow(function, schema=...); table.to_pandas() gives the frame"),
    **dict.fromkeys(("udtf", "arrow_udtf", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline",
        "inline_outer", "stack", "flatten"), "use stream.flat_map(function, schema=...)"),
    "broadcast": "use groupBy(...).with_broadcast(other)",
    **dict.fromkeys(("nvl", "ifnull"), "use penstock.coalesce(column, value)"),
    "isnull": "use penstock.col(name).isNull()",
    "isnotnull": "use penstock.col(name).isNotNull()",
    "isnan": "compare with itself: ~(penstock.col(name) == penstock.col(name))",
    "window_time": "select the end of the window: penstock.col('window').getField('end')",
    "contains": "use penstock.col(name).contains(text)",
    "startswith": "use penstock.col(name).startswith(text)",
    "endswith": "use penstock.col(name).endswith(text)",
    **dict.fromkeys(("substr", "substring"), "use penstock.col(name).substr(start, length)"),
    **dict.fromkeys(("to_date", "to_timestamp"), "use penstock.col(name).cast('timestamp'), or 'date'"),
    **dict.fromkeys(("now", "current_timestamp", "localtimestamp", "current_date", "curdate"),
        "a row must mean the same when it is processed again; put the time into the rows at their source"),
    **dict.fromkeys(("row_number", "rank", "dense_rank", "percent_rank", "ntile", "cume_dist", "lag", "lead", "nth_value",
        "monotonically_increasing_id", "asc", "desc", "asc_nulls_first", "asc_nulls_last", "desc_nulls_first",
        "desc_nulls_last", "Window"), _ORDERED),
    **dict.fromkeys(("rand", "randn", "randstr", "uniform", "uuid", "shuffle"),
        "a row must mean the same when it is processed again; derive the value from the row, as by a hash of its key"),
    **dict.fromkeys(("functions", "F"), "use penstock.col, lit, when, coalesce and the aggregates of penstock itself"),
    **dict.fromkeys(("types", "StructType", "StructField", "StringType", "LongType", "IntegerType", "DoubleType"),
        "write types as text, as in schema='user string, amount long', or give the types of pyspark.sql.types"),
    "Row": "return tuples, dicts or named tuples",
    **dict.fromkeys(("SparkSession", "Session", "builder", "SparkContext", "connect", "init", "getOrCreate"),
        "use penstock.session()"),
    **dict.fromkeys(("readStream", "read_stream", "read", "spark", "table", "from_kafka", "read_kafka", "kafka", "source",
        "from_parquet", "read_parquet", "from_csv", "read_csv", "from_files", "from_folder"), _SOURCE),
    **dict.fromkeys(("from_pandas", "from_list", "from_arrow", "from_table", "createDataFrame", "parallelize"),
        "use penstock.from_rows(rows, schema=..., name=...)"),
    **dict.fromkeys(("StreamingQuery", "StreamingQueryManager", "queries", "query"),
        "start() returns the query, and penstock.streams knows all of this process"),
    "DataFrame": "streams are penstock.Stream; from_dataframe(df) makes one of a DataFrame",
    **dict.fromkeys(("run", "start", "execute", "main"),
        "queries are started with stream.writeStream...start(); penstock.testing.run(stream) runs one in a test"),
    **dict.fromkeys(("map", "filter", "groupBy", "group_by", "join", "union", "select", "withWatermark", "watermark"),
        "it is a method of a stream, such as penstock.from_rows(...) gives"),
    **dict.fromkeys(("TimerState", "TimerValues", "StatefulProcessor", "StatefulProcessorHandle"),
        "processors are PySpark's own: from pyspark.sql.streaming import StatefulProcessor"),
    "State": "use penstock.ValueState, ListState or MapState",
    **dict.fromkeys(("GroupState", "GroupStateTimeout"), "import it from pyspark.sql.streaming.state"),
    "testing": "import it first: import penstock.testing",
    "functional": "use methods of streams",
    "tumbling_window": "use penstock.window(column, duration)",
    "sliding_window": "use penstock.window(column, duration, slide)",
}  # fmt: skip
"""Names that have something of ours to stand for them."""

_AGGREGATES: Final = _words(
    """
    array_agg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or
    collect_list collect_set collect_union corr count_min_sketch covar_pop covar_samp every grouping grouping_id
    histogram_numeric hll_sketch_agg hll_union_agg kurtosis listagg listagg_distinct median mode percentile
    percentile_approx approx_percentile product regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
    regr_sxx regr_sxy regr_syy skewness some string_agg string_agg_distinct try_avg try_sum vector_avg
    vector_sum quantile nunique
    """
)

_ARROWS: Final[dict[str, str]] = {
    "upper": "utf8_upper", "ucase": "utf8_upper", "lower": "utf8_lower", "lcase": "utf8_lower", "length": "utf8_length",
    "char_length": "utf8_length", "character_length": "utf8_length", "trim": "utf8_trim_whitespace",
    "ltrim": "utf8_ltrim_whitespace", "rtrim": "utf8_rtrim_whitespace", "initcap": "utf8_title",
    "reverse": "utf8_reverse", "replace": "replace_substring", "regexp_replace": "replace_substring_regex",
    "regexp_extract": "extract_regex", "rlike": "match_substring_regex", "like": "match_like", "split": "split_pattern",
    "concat": "binary_join_element_wise", "concat_ws": "binary_join_element_wise", "abs": "abs_checked",
    "round": "round", "bround": "round", "floor": "floor", "ceil": "ceil", "ceiling": "ceil", "sqrt": "sqrt_checked",
    "exp": "exp", "ln": "ln_checked", "log": "logb", "log10": "log10_checked", "log2": "log2_checked", "pow": "power",
    "power": "power", "sin": "sin", "cos": "cos", "tan": "tan", "sign": "sign", "signum": "sign",
    "greatest": "max_element_wise", "least": "min_element_wise", "year": "year", "month": "month", "day": "day",
    "dayofmonth": "day", "hour": "hour", "minute": "minute", "second": "second", "quarter": "quarter",
    "dayofweek": "day_of_week", "weekday": "day_of_week", "dayofyear": "day_of_year", "date_trunc": "floor_temporal",
    "trunc": "floor_temporal", "date_format": "strftime", "to_char": "strftime", "from_unixtime": "strftime",
    "struct": "make_struct", "named_struct": "make_struct", "array_contains": "index", "size": "list_value_length",
    "cardinality": "list_value_length", "element_at": "list_element", "get": "list_element", "slice": "list_slice",
    "lpad": "utf8_lpad", "rpad": "utf8_rpad", "repeat": "binary_repeat", "negate": "negate_checked",
}  # fmt: skip
"""Functions of columns, by what computes them in `pyarrow.compute`."""


_OTHERS: Final = _words(
    """
    AnalyzeArgument AnalyzeResult OrderingColumn PartitioningColumn SelectedColumn SkipRestOfInputTableException
    UserDefinedFunction UserDefinedTableFunction acos acosh add_months aes_decrypt aes_encrypt aggregate array
    array_append array_compact array_distinct array_except array_insert array_intersect array_join array_max
    array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union
    arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh base64 bin bit_count bit_get
    bit_length bitmap_bit_position bitmap_bucket_number bitmap_count bitwise_not btrim bucket cbrt char collate
    collation conv convert_timezone cosh cot counter_diff crc32 create_map csc current_catalog current_database
    current_path current_schema current_time current_timezone current_user date_add date_diff
    date_from_unix_date date_part date_sub dateadd datediff datepart dayname days decode degrees e elt encode
    equal_null exists expm1 extract factorial find_in_set forall format_number format_string from_base32
    from_json from_utc_timestamp from_xml get_json_object getbit hash hex hll_sketch_estimate hll_union hmac
    hours hypot ilike input_file_block_length input_file_block_start input_file_name instr is_valid_utf8
    is_valid_variant is_variant_null jaro_winkler_similarity java_method json_array_length json_object_keys
    json_tuple kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint
    kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double
    kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double
    kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
    kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float last_day left levenshtein
    locate log1p make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz
    make_timestamp_ntz make_valid_utf8 make_ym_interval map_concat map_contains_key map_entries map_filter
    map_from_arrays map_from_entries map_keys map_values map_zip_with mask md5 monthname months months_between
    nanvl negative next_day nullif nullifzero nvl2 octet_length overlay parse_json parse_url pi pmod position
    positive printf quote radians raise_error reduce reflect regexp regexp_count regexp_extract_all regexp_instr
    regexp_like regexp_substr right rint schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg
    schema_of_xml sec sentences sequence session_user sha sha1 sha2 shiftleft shiftright shiftrightunsigned sinh
    sort_array soundex spark_partition_id split_part st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid
    st_srid str_to_map substring_index tanh theta_difference theta_intersection theta_intersection_agg
    theta_sketch_agg theta_sketch_estimate theta_union theta_union_agg time_bucket time_diff time_from_micros
    time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp_add
    timestamp_diff timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds to_base32 to_binary
    to_csv to_json to_number to_time to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp
    to_varchar to_variant_object to_xml transform transform_keys transform_values translate try_add
    try_aes_decrypt try_divide try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz
    try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_reflect try_subtract
    try_to_binary try_to_date try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8
    try_variant_array_append try_variant_get try_variant_insert try_variant_set tuple_difference_double
    tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_intersection_double
    tuple_intersection_integer tuple_intersection_theta_double tuple_intersection_theta_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer
    tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
    tuple_sketch_theta_integer tuple_union_agg_double tuple_union_agg_integer tuple_union_double
    tuple_union_integer tuple_union_theta_double tuple_union_theta_integer typeof unbase64 unhex unix_date
    unix_micros unix_millis unix_nanos unix_seconds unix_timestamp unwrap_udt url_decode url_encode user
    validate_utf8 variant_array_append variant_delete variant_get variant_insert variant_set variant_strip_nulls
    vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize version
    weekofyear width_bucket xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number
    xpath_short xpath_string xxhash64 years zeroifnull zip_with
    """
)
"""All other names of pyspark.sql.functions, which are no slips of our names."""


def refuse_name(name: str, ours: list[str]) -> NoReturn:
    """Raise the error of a name that `penstock` has not.

    Args:
        ours: the names it has.
    """
    if name.startswith("_"):
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    raise MissingMethodError(f"penstock has no {name!r}; {_told(name, ours)}")


def _told(name: str, ours: list[str]) -> str:
    if name in _OF_OURS:
        return f"{_OF_OURS[name]}."
    if name in _AGGREGATES:
        return f"it is no aggregate of ours; {_BY_KEY}."
    if name in _ARROWS:
        return f"compute it with stream.map_arrow(function, schema=...) and pyarrow.compute.{_ARROWS[name]}."
    if name in _OTHERS:
        return (
            "compute it with stream.map_arrow(function, schema=...) and pyarrow.compute, or on the DataFrame before "
            "penstock.from_dataframe(df)."
        )
    return did_you_mean(name, ours, f"it has {', '.join(ours)}.")
