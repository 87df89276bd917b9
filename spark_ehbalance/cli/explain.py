"""`ehbalance explain`: why partitions are not read, or have moved, and what happens next."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from spark_ehbalance.cli.common import check_group, console, hub_states, now_ms, warn
from spark_ehbalance.cli.options import (
    CONNECTION_STRING,
    AsJson,
    BlobNamespace,
    GroupName,
    HubOptions,
    LeaseTable,
    StorageOptions,
    group_of,
)
from spark_ehbalance.cli.reasons.answer import Answer
from spark_ehbalance.cli.reasons.answer import explain as explained
from spark_ehbalance.cli.reasons.facts import Facts, HubFacts
from spark_ehbalance.cli.reasons.findings import Severity
from spark_ehbalance.errors import EhBalanceError, HubUnavailableError, OptionError, StoreUnavailableError
from spark_ehbalance.hub.receiver import Disconnected, PartitionAddress, Receiver
from spark_ehbalance.hub.refusals import Unreachable
from spark_ehbalance.leases.expiry import CLOCK_SKEW_ALLOWANCE
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.source.options import Options
from spark_ehbalance.stores import base
from spark_ehbalance.text import plain
from spark_ehbalance.values.secrets import shown

_STYLES = {Severity.WRONG: "bold red", Severity.WAITS: "yellow", Severity.NOTE: "dim"}

#: Seconds for which members that seem silent are watched at most, or half a lease duration, in which a live one renews.
#: What their clocks say does not matter then.
_WATCHED, _LOOK_INTERVAL = 15.0, 0.5

#: Partitions of which it is tried who reads them: each is a connection.
_MOST_TRIED = 8

#: Seconds for the hub to accept or refuse a receiver.
_PATIENCE = 5.0


def explain(
    lease_table: LeaseTable,
    hub: HubOptions,
    storage: StorageOptions,
    partition: Annotated[
        str | None, typer.Argument(help="The partition's id; without it what is wrong in the group, the worst first.")
    ] = None,
    blob_namespace: BlobNamespace = None,
    group: GroupName = None,
    as_json: AsJson = False,
) -> None:
    """Say why partitions are not read or have moved, who holds them back, and what happens next and when.

    The lease table and its history tell that, and the event hub, if it is given, which is not disturbed. A member that
    seems silent is watched for some seconds.
    """
    given = hub.event_hub_name, hub.fully_qualified_namespace, hub.connection_string, os.environ.get(CONNECTION_STRING)
    asks = any(given)
    options = hub.options(lease_table, storage, blob_namespace) if asks else None
    named = group_of(group) if group else options.group if options else None
    identity = options.connection.identity if options else None
    with storage.open(lease_table, identity=identity, group=named) as store:
        facts = gathered(store, lease_table, options, partition)
    if (
        partition is not None
        and partition not in facts.snapshot.leases
        and not (facts.hub and partition in facts.hub.states)
    ):
        known = ", ".join(facts.snapshot.leases) or "none"
        raise OptionError(f"partition {shown(partition)} is unknown: there are {known}")
    answer = explained(facts, partition)
    if as_json:
        typer.echo(json.dumps(_json(answer), indent=2))
    else:
        _show(console(), answer)


def gathered(store: base.LeaseTable, lease_table: str, options: Options | None, partition: str | None = None) -> Facts:
    """All facts. Raises `StoreError`s of the lease table; a hub or a history that does not answer is a fact."""
    found = store.read()
    if options is not None:
        check_group(found, options.group, lease_table)
    facts = Facts(found, now_ms(), keeps_all=store.capabilities.members)
    recent = [each for each, at_ms in facts.last_seen_ms.items() if facts.now_ms - at_ms < 1000 * CLOCK_SKEW_ALLOWANCE]
    if silent := {each for each in recent if facts.late(each)}:
        seconds = min(_WATCHED, max(map(facts.duration_ms, silent)) / 2000)
        found, alive = _watched(store, found, silent, seconds)
        facts = Facts(found, now_ms(), alive=alive, keeps_all=store.capabilities.members)
    if store.capabilities.members:
        try:
            facts = replace(facts, history=tuple(store.history()))
        except StoreUnavailableError as error:
            warn(f"{error}. Why partitions have moved is not known")
    if options is not None:
        facts = replace(facts, hub=_asked(options))
        assert facts.hub is not None
        doubtful = [each.partition for each in facts.snapshot.leases.values() if each.owner and facts.stands(each)]
        tried = doubtful[:_MOST_TRIED] if partition is None else [partition]
        levels, now = _levels(options, tried, facts.hub), store.read().leases
        # Whoever has taken a partition since the first look reads it with another epoch.
        levels = {p: level for p, level in levels.items() if p in now and now[p].epoch == found.leases[p].epoch}
        facts = replace(facts, hub=replace(facts.hub, levels=levels))
    return facts


def _watched(
    store: base.LeaseTable, before: Snapshot, silent: Collection[str], seconds: float
) -> tuple[Snapshot, frozenset[str]]:
    """The newest snapshot after so many `seconds` at most, and those of the `silent` members that have renewed."""
    until, found, alive = time.monotonic() + seconds, before, frozenset[str]()
    while alive < {*silent} and time.monotonic() < until:
        time.sleep(_LOOK_INTERVAL)
        found = store.read()
        alive = frozenset(each for each in silent if _counters(found, each) - _counters(before, each))
    return found, alive


def _counters(snapshot: Snapshot, member: str) -> set[object]:
    row = snapshot.members.get(member)
    return {each.counter for each in snapshot.owned_by(member)} | ({row.counter} if row else set())


def _asked(options: Options) -> HubFacts:
    try:
        reference, states = hub_states(options)
    except HubUnavailableError as error:
        return HubFacts(problem=str(error))
    return HubFacts(states, reference.created_ms)


def _levels(options: Options, partitions: Collection[str], hub: HubFacts) -> dict[str, int]:
    """The owner levels with which these partitions are read at the moment, as far as the hub tells: a receiver without
    one is refused, which disturbs nobody."""
    levels = {}
    for partition in hub.states.keys() & {*partitions}:
        address = PartitionAddress(options.connection, options.consumer_group, partition)
        receiver = Receiver(address, hub.states[partition].end, owner_level=None, prefetch=1)
        try:
            receiver.confirm(_PATIENCE)
        except Disconnected as other:
            if other.epoch is not None:
                levels[partition] = other.epoch
        except (EhBalanceError, Unreachable):
            pass  # then nothing is known of it
        finally:
            receiver.close()
    return levels


def _json(answer: Answer) -> dict[str, object]:
    findings = [{**asdict(each), "severity": each.severity.name.lower()} for each in answer.findings]
    return {**asdict(answer), "findings": findings}


def _show(out: Console, answer: Answer) -> None:
    indent = " " * (2 + max(len(each.name) for each in Severity))
    _say(out, answer.state)
    for finding in answer.findings:
        severity = finding.severity.name.lower()
        out.print(Text(severity.ljust(len(indent)), _STYLES[finding.severity]), end="")
        _say(out, finding.text, indent, begun=True)
        _say(out, finding.next and f"Next: {finding.next}", indent)
        _say(out, finding.do and f"→ {finding.do}", indent)
    _say(out, answer.closing)
    if answer.moves:
        _say(out, "What has happened to it, the last first:")
    for move in answer.moves:
        _say(out, f"- {move}")


def _say(out: Console, text: str, indent: str = "", *, begun: bool = False) -> None:
    """Print a text, if there is one, with all lines indented; of one that was `begun` the first one is already."""
    lines = textwrap.wrap(plain(text), out.width - len(indent), break_on_hyphens=False)
    for number, line in enumerate(lines):
        out.print(Text(line if begun and number == 0 else indent + line), soft_wrap=True)
