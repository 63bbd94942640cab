"""`./dev run python -m tests.damage.run 10000` damages so many objects, and prints the tables of
`docs/contributing/verification-tables.md`."""

from __future__ import annotations

import resource
import sys

from tests.damage.judge import FAILURES, Outcome, Tally, judged


def table_of(found: Tally) -> str:
    """Markdown: how often each class of object came to each outcome; and of each kind of damage the same, as `1/2`, in this order."""
    outcomes = [outcome for outcome in Outcome if any(key[2] is outcome for key in found.counts)]
    objects = sorted({key[0] for key in found.counts})
    lines = [f"| object | {' | '.join(outcomes)} |", f"|---{'|---' * len(outcomes)}|"]
    for kind in objects:
        totals = [sum(count for (of, _, came), count in found.counts.items() if of == kind and came is outcome) for outcome in outcomes]
        lines.append(f"| {kind} | {' | '.join(f'{total:,}' if total else '' for total in totals)} |")
    lines += ["", f"| damage | {' | '.join(objects)} |", f"|---{'|---' * len(objects)}|"]
    for damage in sorted({key[1] for key in found.counts}):
        cells = [_cell([found.counts.get((kind, damage, outcome), 0) for outcome in outcomes]) for kind in objects]
        lines.append(f"| {damage} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(counts: list[int]) -> str:
    """The counts of some outcomes, without those behind the last that there is."""
    while counts and not counts[-1]:
        counts = counts[:-1]
    return "/".join(map(str, counts))


def main() -> int:
    count, start = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    reads = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    found, seed, done = Tally(), start, 0
    judged(0, reads=reads)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while done < count:
        verdict = judged(seed, reads=reads)
        seed += 1
        if verdict is None:
            continue
        done += 1
        found.add(verdict)
        if verdict.outcome in FAILURES:
            print(f"seed {verdict.seed}: {verdict.target.key}: {verdict.kind}: {verdict.outcome}: {verdict.why[:600]}", flush=True)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    print(table_of(found))
    print(f"{done:,} damages, seeds {start} to {seed - 1}, {len(found.failures)} failures, memory grew by {grown_kib // 1024} MiB at most")
    return 1 if found.failures or grown_kib > 1024**2 else 0


if __name__ == "__main__":
    sys.exit(main())
