"""The page of the group report: one HTML file without scripts that needs no network, in the dashboard's style. Others
have written its texts, so that each is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib.resources import files

from spark_ehbalance.cli.common import age
from spark_ehbalance.cli.reasons.answer import Answer
from spark_ehbalance.cli.reasons.facts import Facts
from spark_ehbalance.cli.reasons.findings import Severity
from spark_ehbalance.leases.model import Lease
from spark_ehbalance.text import plain

#: The most characters of a text that are shown.
_MOST_TEXT = 1000

#: Nothing is fetched, and no script runs, whatever got into the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
td a { color: inherit; } .card { margin-bottom: 12px; overflow-x: auto; } td { vertical-align: top; }
td:first-child, td.t { white-space: normal; overflow-wrap: anywhere; min-width: 7em; } td.t { min-width: 12em; }
td.s { white-space: nowrap; } .ok { color: var(--good); } .findings .note { display: block; }
.findings li { padding: 6px 0; overflow-wrap: anywhere; }
.lag-bar { display: block; height: 4px; margin: 3px 0 0 auto; border-radius: 2px; background: var(--curve); }
"""

_CLASSES = {Severity.WRONG: "bad", Severity.WAITS: "warn", Severity.NOTE: "note"}

#: Columns of text, which is wrapped; `state` is a word, and all others are numbers.
_FIRST = "what needs attention first"
_TEXTS = {"group", "partition", "owner", _FIRST}


@dataclass(frozen=True)
class Looked:
    """The lease table at `table`, with what was found there and what `ehbalance explain` says of it; or the `problem`
    why it cannot be read."""

    table: str
    facts: Facts | None = None
    answer: Answer | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """The group's, or the table's if it is not known."""
        return str(self.facts.snapshot.group) if self.facts else self.table

    @property
    def severity(self) -> int:
        """That of the worst finding; 0: there is none."""
        if self.answer is None:
            return Severity.WRONG
        return max((each.severity for each in self.answer.findings), default=0)

    def state(self, partition: str) -> tuple[str, str | None]:
        """The worst that is said of a partition: ok, or the severity's name and the text."""
        said = self.answer.findings if self.answer else ()
        worst = next((each for each in said if partition in each.partitions), None)
        return ("ok", None) if worst is None else (worst.severity.name.lower(), worst.text)


def page(groups: Sequence[Looked], folder: str, at: datetime) -> str:
    """The page of these groups, the worst first."""
    ordered = sorted(groups, key=lambda each: (-each.severity, each.name))
    style = files("spark_ehbalance.dashboard").joinpath("page/page.css").read_text("utf-8") + _STYLE
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Groups in {_text(folder)}</title>',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body>',
            f"<header><h1>Groups in {_text(folder)}</h1><span>{at:%Y-%m-%d %H:%M:%S} UTC</span></header><main>",
            *_overview(ordered),
            *(line for number, each in enumerate(ordered) for line in _group(number, each)),
            "</main></body></html>",
        ]
    )


def _overview(groups: Sequence[Looked]) -> Iterator[str]:
    rows = []
    for number, each in enumerate(groups):
        link = f'<a href="#g{number}">{_text(each.name)}</a>'
        if each.facts is None or each.answer is None:
            rows.append([link, _chip(Severity.WRONG, "unreadable"), "", "", "", "", _text(each.problem)])
            continue
        facts, leases = each.facts, each.facts.snapshot.leases.values()
        events, waited = _unread(facts, leases)
        live = sum(map(facts.live, facts.last_seen_ms))
        owned = sum(lease.owner is not None and facts.live(lease.owner) for lease in leases)
        worst = each.answer.findings[0].text if each.answer.findings else ""
        rows.append([link, _chip(each.severity), str(live), f"{owned} of {len(leases)}", events, waited, _text(worst)])
    columns = (
        "group",
        "state",
        "live members",
        "partitions with a live owner",
        "unread",
        "waiting",
        "what needs attention first",
    )
    yield '<section class="card">'
    yield from _table(columns, rows)
    yield "</section>"


def _group(number: int, looked: Looked) -> Iterator[str]:
    yield f'<article class="group" id="g{number}"><h2>{_text(looked.name)}</h2><p class="sub">{_text(looked.table)}</p>'
    if looked.facts is None or looked.answer is None:
        yield f'<p class="problem">{_text(looked.problem)}</p></article>'
        return
    yield f'<section class="card"><p>{_text(looked.answer.state)}</p><ul class="findings">'
    for each in looked.answer.findings:
        more = [f"{label}{_text(text)}" for label, text in (("Next: ", each.next), ("→ ", each.do)) if text]
        notes = "".join(f'<span class="note">{text}</span>' for text in more)
        yield f"<li>{_chip(each.severity)} {_text(each.text)}{notes}</li>"
    yield f"</ul><p>{_text(looked.answer.closing)}</p></section>"
    facts, leases = looked.facts, looked.facts.snapshot.leases.values()
    most = max((facts.unread(each)[0] for each in leases), default=0)
    columns = ("partition", "owner", "state", "unread", "waiting", "read up to", "renewed", "owned for", "epoch")
    yield '<section class="card">'
    yield from _table(columns, (_partition(looked, facts, each, most) for each in leases))
    yield "</section></article>"


def _partition(looked: Looked, facts: Facts, lease: Lease, most: int) -> list[str]:
    state = looked.state(lease.partition)[0]
    events, waited = _unread(facts, [lease])
    if most and (unread := facts.unread(lease)[0]):
        events += f'<span class="lag-bar" style="width:{100 * unread / most:.0f}%"></span>'
    severity = Severity[state.upper()] if state != "ok" else 0
    return [
        _text(lease.partition),
        _text(facts.name(lease.owner)) if lease.owner is not None else "nobody",
        _chip(severity),
        events,
        waited,
        "" if lease.checkpoint is None else f"{lease.checkpoint.sequence_number:,}",
        f"{age(facts.now_ms - lease.renewed_at_ms)} ago" if lease.renewed_at_ms else "",
        age(facts.now_ms - lease.owned_since_ms) if lease.owner and lease.owned_since_ms else "",
        str(lease.epoch),
    ]


def _unread(facts: Facts, leases: Iterable[Lease]) -> tuple[str, str]:
    """How many events are unread of those partitions of which that is known, and for how long the oldest has waited."""
    found = [facts.unread(each) for each in leases if each.behind]
    longest = max((waited for _, waited in found if waited), default=0.0)
    return f"{sum(events for events, _ in found):,}" if found else "", age(int(longest)) if longest else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of cells that are HTML."""
    kinds = ["t" if name in _TEXTS else "s" if name == "state" else "n" for name in columns]
    yield "<table><thead><tr>"
    yield "".join(f'<th class="{kind}">{name}</th>' for kind, name in zip(kinds, columns, strict=True))
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = zip(kinds, columns, row, strict=True)
        inner = "".join(f'<td class="{kind}" data-label="{name}">{cell}</td>' for kind, name, cell in cells)
        yield f"<tr>{inner}</tr>"
    yield "</tbody></table>"


def _chip(severity: int, text: str = "") -> str:
    name = Severity(severity).name.lower() if severity else "ok"
    return f'<b class="{_CLASSES[Severity(severity)] if severity else "ok"}">{text or name}</b>'


def _text(text: str) -> str:
    return escape(plain(text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"))
