"""`python -m benchmarks NAME ...`."""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    match arguments:
        case ["fileio", *rest]:
            from benchmarks import fileio_bench

            return fileio_bench.main(rest)
        case ["metadata", *rest]:
            from benchmarks import metadata_bench

            return metadata_bench.main(rest)
    print("benchmarks: name one of: fileio, metadata", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
