"""The style of the page of `objcat report`, for light and dark screens."""

from __future__ import annotations

ACTIONS = {
    "COMMIT": ("#2f6fb5", "#6aa8e8"),
    "DELTA_COMMIT": ("#4b93cf", "#4f86b8"),
    "COMPACTION": ("#3d9a57", "#5cc27b"),
    "CLEAN": ("#8a8a8a", "#9d9d9d"),
    "ROLLBACK": ("#c0392b", "#f0705f"),
    "RESTORE": ("#8e44ad", "#c07fe0"),
    "SAVEPOINT": ("#b8860b", "#e5b93c"),
    "REPLACE": ("#d35400", "#f08a42"),
    "OTHER": ("#5d6d7e", "#8fa3b8"),
}
"""Colours of actions, on a light and on a dark background."""

_LIGHT, _DARK = ("\n".join(f".a-{name} {{ fill: {colours[ground]} }}" for name, colours in ACTIONS.items()) for ground in (0, 1))

STYLE = f"""
:root {{ --ink: #1d2733; --soft: #5b6671; --ground: #fff; --panel: #f7f9fb; --line: #dfe5ea;
  --bar: #4b93cf; --note: #fff7e0; --edge: #d9a400 }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 1000px; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.5rem; margin-bottom: 0; overflow-wrap: anywhere }} h2 {{ font-size: 1.1rem; margin-top: 2.2rem }}
.soft {{ color: var(--soft); overflow-wrap: anywhere }} .good {{ color: var(--soft) }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: .8rem; margin: 1rem 0 }}
dt {{ color: var(--soft); font-size: .85rem }} dd {{ margin: 0; font-size: 1.15rem }}
code {{ font: .9em ui-monospace, monospace; overflow-wrap: anywhere }}
.advice {{ background: var(--note); border-left: 4px solid var(--edge); margin: 0; padding: .6rem .8rem .6rem 2rem; color: var(--ink) }}
.plot {{ width: 100%; height: auto; background: var(--panel); border: 1px solid var(--line) }}
.plot text {{ font: 12px system-ui, sans-serif; fill: var(--soft) }} .grid {{ stroke: var(--line) }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line) }}
td {{ overflow-wrap: break-word }} .words th, .words td {{ text-align: left }}
td:has(.bar) {{ text-align: left }} th:first-child, td:first-child {{ text-align: left }} th {{ color: var(--soft); font-weight: 500 }}
.bar {{ width: 120px; height: .7em; vertical-align: middle }} .bar rect {{ fill: var(--bar) }}
.key span {{ margin-right: 1.2rem; white-space: nowrap }} .swatch {{ width: .8em; height: .8em; margin-right: .35em }}
{_LIGHT}
@media (prefers-color-scheme: dark) {{
:root {{ --ink: #e3e9ef; --soft: #9aa7b4; --ground: #14191f; --panel: #1b222a; --line: #303a45;
  --bar: #4f86b8; --note: #2c2711; --edge: #b58a00 }}
{_DARK}
}}
"""
