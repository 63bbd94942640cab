"""The tables of TPC-DS as Parquet files, and its queries as Spark's own tests have them. Made once and cached."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from devkit.environments import listed_artifacts, locked_artifacts, locked_environment
from devkit.paths import cache_dir, file_lock

KEYS: Mapping[str, tuple[str, ...]] = {
    "call_center": ("cc_call_center_sk",),
    "catalog_page": ("cp_catalog_page_sk",),
    "catalog_returns": ("cr_item_sk", "cr_order_number"),
    "catalog_sales": ("cs_item_sk", "cs_order_number"),
    "customer": ("c_customer_sk",),
    "customer_address": ("ca_address_sk",),
    "customer_demographics": ("cd_demo_sk",),
    "date_dim": ("d_date_sk",),
    "household_demographics": ("hd_demo_sk",),
    "income_band": ("ib_income_band_sk",),
    "inventory": ("inv_date_sk", "inv_item_sk", "inv_warehouse_sk"),
    "item": ("i_item_sk",),
    "promotion": ("p_promo_sk",),
    "reason": ("r_reason_sk",),
    "ship_mode": ("sm_ship_mode_sk",),
    "store": ("s_store_sk",),
    "store_returns": ("sr_item_sk", "sr_ticket_number"),
    "store_sales": ("ss_item_sk", "ss_ticket_number"),
    "time_dim": ("t_time_sk",),
    "warehouse": ("w_warehouse_sk",),
    "web_page": ("wp_web_page_sk",),
    "web_returns": ("wr_item_sk", "wr_order_number"),
    "web_sales": ("ws_item_sk", "ws_order_number"),
    "web_site": ("web_site_sk",),
}
"""The primary key of each table, as the specification of TPC-DS has it."""
_GENERATE = """
import importlib.util, sys
from pathlib import Path
import duckdb
place, scale = sys.argv[1:]
connection = duckdb.connect(f"{place}/generated", config={"allow_unsigned_extensions": "true", "memory_limit": "3GB", "threads": "2"})
for name in ("parquet", "tpcds"):
    (folder,) = importlib.util.find_spec(f"duckdb_extension_{name}").submodule_search_locations
    (file,) = Path(folder).glob(f"extensions/*/{name}.duckdb_extension")
    connection.execute(f"LOAD '{file}'")
connection.execute(f"CALL dsdgen(sf={scale})")
for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
    connection.execute(f"COPY {name} TO '{place}/{name}.parquet' (FORMAT parquet, COMPRESSION zstd)")
"""


def make_tables(scale: float, say: Callable[[str], None]) -> Path:
    """The folder with a Parquet file for each table. Generates it when it is missing. Safe for several processes at once."""
    recipe = hashlib.sha256(_GENERATE.encode()).hexdigest()[:8]
    target = cache_dir() / "tpcds" / f"sf{scale:g}-{recipe}"
    with file_lock(target.with_name(target.name + ".lock"), f"another process is generating TPC-DS at scale {scale:g}"):
        if not target.exists():
            say(f"Generating TPC-DS at scale {scale:g} (once).")
            python = locked_environment("tpcds")
            building = Path(tempfile.mkdtemp(prefix=f"{target.name}.build-", dir=target.parent))
            try:
                subprocess.run([python, "-c", _GENERATE, str(building), f"{scale:g}"], check=True)
                (building / "generated").unlink()
                building.rename(target)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
    return target


def queries() -> dict[str, str]:
    """The text of each query by its name, `q1` to `q99`; those of two parts are two, `q14a` and `q14b`. In the order of their numbers."""
    (jar,) = locked_artifacts(listed_artifacts("tpcds"))
    with zipfile.ZipFile(jar) as files:
        found = {Path(name).stem: _renamed(files.read(name).decode()) for name in files.namelist() if _is_query(name)}
    return dict(sorted(found.items(), key=lambda pair: (int(pair[0][1:].rstrip("ab")), pair[0])))


def _renamed(text: str) -> str:
    """A query with the name that the generator gives a column. Versions of the specification differ in it."""
    return re.sub(r"\bc_last_review_date\b", "c_last_review_date_sk", text)


def _is_query(name: str) -> bool:
    return name.startswith("tpcds/q") and name.endswith(".sql")
