"""`./dev SUBCOMMAND`, inside the environment."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    match arguments:
        case ["run", command, *rest]:
            os.environ["PATH"] = f"{sys.prefix}/bin:{os.environ.get('PATH', os.defpath)}"
            os.execvp(command, [command, *rest])
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
