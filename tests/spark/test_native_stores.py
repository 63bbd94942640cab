"""Spark in processes of their own: with the connector of a store, and behind a Spark Connect server, where nothing is native."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import objcat.spark
from devkit import prepare, toolchain
from devkit.handle import ServerHandle
from devkit.paths import ROOT, cache_dir, file_lock
from fileio.errors import InvalidConfig
from objcat.errors import InvalidInput
from objcat.spark import settings, versions
from objcat.spark.views import Views
from tests.spark.native_driver import HELD, statements

RUN_S_MAX = 170


def driven(scenario: str, environment: Mapping[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
    """What a scenario of `tests/spark/native_driver.py` prints last."""
    variables = {**os.environ, "JAVA_HOME": str(toolchain.java_home()), "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})}
    command = [sys.executable, "-m", "tests.spark.native_driver", scenario, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def test_a_bucket_is_read_through_its_connector(servers: Callable[[str], ServerHandle]) -> None:
    store = servers("versitygw").fresh_bucket()
    found = driven("connector", url=store.url, options=dict(store.options), ivy=str(prepare.s3_connector()))
    assert found.pop("statements") == HELD
    assert found == {"all": {"same": True, "rows": 245}, "some": {"same": True, "rows": found["some"]["rows"]}, "native": True}
    assert found["some"]["rows"] > 0


def test_statements_write_a_bucket_without_its_connector(spark: SparkSession, servers: Callable[[str], ServerHandle]) -> None:
    store, session = servers("versitygw").fresh_bucket(), spark.newSession()
    assert statements(session, f"{store.url}/lake", store.options) == HELD
    Views(session, "lake").close()


def test_behind_spark_connect_python_workers_read(tmp_path: Path) -> None:
    path = os.pathsep.join([*(p for p in [os.environ.get("PYTHONPATH")] if p), str(prepare.spark_connect())])
    jars = ",".join(map(str, prepare.spark_connect_server())) if versions.VERSION < (4, 0) else ""
    server = {"PYSPARK_SUBMIT_ARGS": f"--jars {jars} pyspark-shell"} if jars else {}
    # A local server of Spark Connect always has the same port, and another run of tests may want it too.
    with file_lock(cache_dir() / "spark-connect.lock", "another test uses the port of Spark Connect"):
        found = driven("connect", {"PYTHONPATH": path, **server}, url=str(tmp_path))
    assert found.pop("module").startswith("pyspark.sql.connect")
    assert found == {"all": {"same": True, "rows": 255}, "some": {"same": True, "rows": found["some"]["rows"]}, "far": 10}


def options_of(builder: SparkSession.Builder) -> dict[str, str]:
    return dict(builder._options)


def test_settings_say_where_and_as_whom() -> None:
    given = {"endpoint": "http://127.0.0.1:1", "access_key": "a", "secret_key": "s", "region": "eu-west-1", "read_timeout_s": 5}
    builder = SparkSession.Builder().config("spark.jars.packages", "x:y:1")
    found = options_of(objcat.spark.configure(builder, "s3://lake.b/prefix", given))
    bucket = "spark.hadoop.fs.s3a.bucket.lake.b."
    assert found[f"{bucket}endpoint"] == "http://127.0.0.1:1"
    assert found[f"{bucket}connection.ssl.enabled"] == "false"
    assert found[f"{bucket}path.style.access"] == "true"
    assert found[f"{bucket}endpoint.region"] == "eu-west-1"
    assert (found[f"{bucket}access.key"], found[f"{bucket}secret.key"]) == ("a", "s")
    assert found["spark.jars.packages"].startswith("x:y:1,org.apache.hadoop:hadoop-aws:")
    assert found["spark.jars.excludes"] in settings.BUNDLES


def test_azure_and_google_name_their_accounts(tmp_path: Path) -> None:
    found = options_of(objcat.spark.configure(SparkSession.Builder(), "az://box", {"account": "acc", "account_key": "a2V5"}))
    assert found["spark.hadoop.fs.azure.account.key.acc.dfs.core.windows.net"] == "a2V5"
    assert "org.apache.hadoop:hadoop-azure:" in found["spark.jars.packages"]
    found = options_of(objcat.spark.configure(SparkSession.Builder(), "gs://box", {"anonymous": True}, jar="/jars/gcs.jar"))
    assert found["spark.jars"] == "/jars/gcs.jar"
    assert found["spark.hadoop.fs.gs.auth.type"] == "UNAUTHENTICATED"
    assert options_of(objcat.spark.configure(SparkSession.Builder(), tmp_path)) == {}


@pytest.mark.parametrize(
    ("url", "options", "error", "says"),
    [
        ("s3://b", {"regoin": "x"}, InvalidConfig, "did you mean 'region'"),
        ("s3://b", {"profile": "p"}, InvalidInput, "'profile' of s3://b has no known counterpart"),
        ("gs://b", {}, InvalidInput, "jar="),
        ("az://b", {"connection_string": "AccountName=a;AccountKey=b"}, InvalidInput, "option account"),
        ("memory://m", {}, InvalidInput, "no connector"),
    ],
)
def test_what_no_setting_says_is_refused(url: str, options: dict[str, str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        objcat.spark.configure(SparkSession.Builder(), url, options)
