"""Counterexamples as stories: who asked for what, what went wrong, what was answered, and what each actor believed at the end."""

from __future__ import annotations

import json
import re

from fileio.contract import Create, Update
from tests.explorer.engine import Counterexample, Result
from tests.explorer.facts import parse_slot, place_of_slot
from tests.explorer.store import Answer, Request


def tell(found: Counterexample) -> str:
    """The story, one request a line."""
    lines = [found.broken, f"in {len(found.steps)} steps:"]
    width = max((len(name) for name, *_ in found.steps), default=0)
    for number, (name, request, fault, answer) in enumerate(found.steps, 1):
        if name == "network":
            lines.append(f"{number:>4}. {name:<{width}}  lands: {describe(request)}")
            continue
        said = "" if answer is None else f" -> {describe_answer(answer)}"
        wrong = "" if fault is None else f"  [{fault.name}: {fault.value}]"
        lines.append(f"{number:>4}. {name:<{width}}  {describe(request)}{said}{wrong}")
    for name, notes in found.notes:
        lines.append(f"      {name} was told: {', '.join(str(note) for note in notes) or 'nothing yet'}")
    return "\n".join(lines)


def summary(result: Result) -> str:
    """One line about a cell: its bounds and its size."""
    cell = result.cell
    budget = f"faults {cell.faults_max}, crashes {cell.crashes_max}"
    where = "" if cell.where == ("",) else f" at {', '.join(cell.where)}"
    size = f"{result.states} states, {result.moves} moves, depth {result.depth}, {result.runs} runs, {result.steps} steps compared"
    return f"{cell.name}: {budget}{where}: {size}"


def describe(request: Request) -> str:
    """A request in a few words."""
    keys = ", ".join(short(key) for key in request.keys)
    if request.kind != "put":
        return f"{request.kind} {keys}"
    condition = {Create: " if absent", Update: " if unchanged"}.get(type(request.mode), "")
    what = ""
    if place_of_slot(request.key) is not None:
        slot = parse_slot(request.data)
        what = f" = {slot.action} {short(slot.txn)}" + (f" of {short(slot.rollback_of)}" if slot.rollback_of else "")
    return f"put{condition} {keys}{what}"


def describe_answer(answer: Answer) -> str:
    """An answer in a few words."""
    match answer.kind:
        case "written":
            return "written"
        case "conflict":
            return "condition failed"
        case "object":
            assert answer.found is not None
            return f"an object{_content(answer.found.data)}"
        case "page":
            return f"[{', '.join(short(key) for key, _, _ in answer.keys)}]"
        case "unknown":
            return "no answer"
    return answer.kind


def short(text: str) -> str:
    """Keys and transactions without the digits that say nothing."""
    text = re.sub(r"\d{8}T\d{9}Z-", "", text)
    text = re.sub(r"\b0{8,}(\d+)\.json", r"\1.json", text)
    return re.sub(r"\b([0-9a-f]{2})([0-9a-f]{14})\b", lambda m: f"{int(m[1], 16)}.{int(m[2], 16)}", text)


def _content(data: bytes) -> str:
    try:
        slot = parse_slot(data)
    except (json.JSONDecodeError, KeyError, UnicodeDecodeError, AttributeError):
        return ""
    return f" = {slot.action} {short(slot.txn)}"
