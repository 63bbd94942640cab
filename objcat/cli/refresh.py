"""`objcat refresh`: a derived table at the newest slots of its sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from objcat.cli.common import Json, Option, TableUrl, lake_and_name
from objcat.cli.output import progress, say, say_json


def refresh(
    url: TableUrl,
    full: Annotated[bool, typer.Option("--full", help="Compute the whole query, also from sources that are others now.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say how it is refreshed, and change nothing.")] = False,
    lag: Annotated[bool, typer.Option("--lag", help="Say how far it is behind its sources, and change nothing.")] = False,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Bring a derived table to the newest slots of its sources, in one commit.

    It reads what changed and what that joins with. You may stop it at any time, and several may run at once: each change counts once.
    """
    lake, name = lake_and_name(url, option)
    if explain:
        plan = lake.explain_derived(name)
        if as_json:
            say_json({"plan": plan})
        else:
            say(plan)
        return
    if lag:
        for one in lake.derived_lag(name):
            if as_json:
                say_json(asdict(one))
            else:
                behind = "cannot be opened" if one.slots is None else f"{one.slots:,} slots behind"
                say(f"{one.source}: at slot {one.slot}, {behind}" + ("" if one.seconds is None else f", {one.seconds:,.0f} s"))
        return
    with progress(f"refreshing {name}", shown=not as_json):
        done = lake.refresh_derived(name, full=full)
    if as_json:
        say_json(asdict(done))
    elif done.slot is None:
        say("nothing changed")
    else:
        at = ", ".join(f"{source} at slot {slot}" for source, slot in done.sources.items())
        say(f"slot {done.slot}: {done.upserted:,} rows came or changed, {done.deleted:,} are gone; {at}")
        if done.why is not None:
            say(f"the whole query was computed: {done.why}")
