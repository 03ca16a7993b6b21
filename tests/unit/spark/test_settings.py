from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.errors import SessionError
from penstock.spark import session as module
from penstock.spark.conflicts import find_conflicts
from penstock.spark.session import SPARE_SLOTS, derive_settings, launch_settings


def test_a_session_on_this_machine_opens_spare_slots_and_states_the_real_cores() -> None:
    settings = derive_settings("app", None, 3, {})
    assert settings["spark.master"] == f"local[{3 + SPARE_SLOTS}]"
    assert settings["spark.penstock.cores"] == "3"
    assert settings["spark.default.parallelism"] == settings["spark.sql.shuffle.partitions"] == "3"


def test_the_chosen_settings_pass_our_own_check() -> None:
    assert find_conflicts(derive_settings("app", None, 2, {})) == []
    assert find_conflicts(derive_settings("app", "spark://host:7077", 2, {})) == []


def test_a_cluster_session_keeps_the_clusters_addresses_and_parallelism() -> None:
    settings = derive_settings("app", "spark://host:7077", 2, {})
    assert settings["spark.master"] == "spark://host:7077"
    assert not {"spark.driver.host", "spark.penstock.cores", "spark.default.parallelism"} & set(settings)


def test_the_users_settings_win_and_jvm_options_are_added() -> None:
    asked = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dx=y"}
    settings = derive_settings("app", None, 2, asked)
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.extraJavaOptions"].startswith("-Dx=y -Dlog4j2.configurationFile=file:")


def test_the_users_own_logging_configuration_is_left_alone() -> None:
    options = {"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine"}
    assert derive_settings("app", None, 2, options)["spark.driver.extraJavaOptions"] == options.popitem()[1]


def test_no_secret_reaches_the_command_line_of_the_jvm() -> None:
    asked = {"spark.authenticate.secret": "s", "spark.driver.memory": "2g", "spark.driver.some.password": "p"}
    launched = launch_settings(derive_settings("app", None, 2, asked))
    assert launched["spark.driver.memory"] == "2g"
    assert not {"s", "p"} & set(launched.values())


def test_platforms_other_than_linux_and_macos_are_refused() -> None:
    with pytest.raises(SessionError, match="Linux and macOS, not on win32"):
        module._require_platform("win32")


def test_without_pyspark_the_first_call_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from penstock.spark.session import session\n"
        "from penstock.errors import SessionError\n"
        "try: session()\n"
        "except SessionError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'penstock[spark]'" in ran.stdout


def test_no_cores_are_refused() -> None:
    with pytest.raises(SessionError, match="cores=0"):
        module.session(cores=0)


def test_a_spark_connect_session_is_refused_with_the_reason() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SessionError, match=r"Spark Connect session: leases connect back to the driver"):
        module.check_session(connect)
