"""`./dev docs vectors`: writes `spec/vectors/`, `docs/spec/examples.md`, and those tables of `spec/tables/` that are missing."""

from __future__ import annotations

from devkit.paths import ROOT
from devkit.spec_examples import write_examples
from devkit.spec_features import FEATURES
from devkit.spec_tables import make, write
from devkit.spec_vectors import vectors

VECTORS = ROOT / "spec" / "vectors"
TABLES = ROOT / "spec" / "tables"


def write_data() -> int:
    """Write what is missing or older than the code. Returns the exit status."""
    VECTORS.mkdir(parents=True, exist_ok=True)
    for name, text in vectors().items():
        (VECTORS / name).write_text(text)
        print(f"dev docs: spec/vectors/{name} is written")
    for number, feature in enumerate(FEATURES):
        if not (TABLES / feature.name).exists():
            write(TABLES / feature.name, make(feature, number))
            print(f"dev docs: spec/tables/{feature.name} is written")
    write_examples()
    print("dev docs: docs/spec/examples.md is written")
    return 0
