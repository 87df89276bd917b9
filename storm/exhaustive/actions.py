"""The actions that are possible in a state, and the invariants that hold in the next state.

Members ignore their pace: each can read, balance and commit at any time. So there are no actions for slow and suspended
members.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from spark_ehbalance.group.changes import Checkpoint, Claim, HandOver, Outcome, Release, RequestHandover, apply
from spark_ehbalance.group.member import protocol
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import ResumePoint
from spark_ehbalance.group.member.pacing import Pace
from spark_ehbalance.group.member.query_state import Progress, QueryState
from spark_ehbalance.group.model import Author, Lease, Member
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.cooperative import cooperative
from storm.exhaustive.state import LEASE, STEP, Budget, Disk, Process, State, Violation

#: A description and the function that returns the next state.
Action = tuple[str, Callable[[], State]]
_Step = Callable[[State, int], State]

PASSES = f"{STEP} s pass"

_HANDOVER_TIMEOUT = STEP

#: Maximum number of actions without faults until a new group has settled; a group of three needs far fewer.
_MAX_SETTLING_ACTIONS = 200


class _NoJitter(random.Random):
    """A generator without randomness."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


_RNG = _NoJitter(0)


def actions(state: State) -> Iterator[Action]:
    """Yield all possible actions. A process that waits for a response is not killed, because nobody would notice."""
    left = state.left
    for number, process in enumerate(state.processes):
        if process.engine is None:
            if left.starts != 0:
                yield f"{process.id}.{state.disks[process.id].starts + 1} starts", partial(_start, state, number)
            continue
        name = process.engine.author.incarnation
        if process.phase == "":
            yield f"{name} reads the table", partial(_serve_at_once, state, number, _read, _receive_snapshot)
            if left.delays != 0:
                yield f"{name} reads the table, and the answer is late", partial(_serve_late, state, number, _read)
            if left.faults != 0:
                yield f"{name} fails to read the table", partial(_serve_at_once, state, number, _read, _fail)
        elif process.phase == "read":
            yield f"{name} gets the answer", partial(_receive_snapshot, state, number)
        elif process.phase == "write":
            yield f"{name} commits", partial(_serve_at_once, state, number, _commit, _receive_outcome)
            if left.delays != 0:
                yield f"{name} commits, and the answer is late", partial(_serve_late, state, number, _commit)
            if left.faults != 0:
                yield f"{name} commits, and the answer is lost", partial(_serve_at_once, state, number, _commit, _fail)
                yield f"{name} gives up its commit", partial(_fail, state, number)
        else:
            yield f"{name} gets the answer", partial(_receive_outcome, state, number)
        if process.phase in ("", "write"):
            yield f"{name} is killed", partial(_kill, state, number)
        if process.batch is not None:
            yield f"{name} finishes its batch", partial(_finish, state, number)
        elif left.batches != 0 and not process.engine.query.progress and process.engine.readable(state.now):
            yield f"{name} begins a batch", partial(_begin, state, number)
    if state.stray:
        yield "the stray commit arrives", partial(_arrive_stray, state)
    if left.requests != 0:
        for lease in state.table.leases.values():
            for row in state.table.members.values():
                if lease.owner not in (None, row.id) and lease.handover is None:
                    request = partial(_request, state, lease, row)
                    yield f"partition {lease.partition} is requested for {row.id}", request
    yield PASSES, partial(_pass_time, state)


def _serve_at_once(state: State, number: int, serve: _Step, answer: _Step) -> State:
    """Serve a request, and deliver the response immediately."""
    served = serve(state, number)
    return answer(served, number) if served.processes[number].engine else served


def check_owners(state: State) -> None:
    """Raise `Violation` if two processes may plan the same partition, unless it was claimed by force, or one of the
    processes is in safe mode."""
    owners: dict[str, tuple[str, int]] = {}
    for process in state.processes:
        engine = process.engine
        if engine is None:
            continue
        look = engine._member.read_state
        if look.failed or state.now - look.unwritable_at < LEASE / 3:  # safe mode
            continue
        me = engine.author.incarnation
        for partition, holding in engine.readable(state.now).items():
            lease = engine.leases[partition]
            if (lease.owner, lease.epoch) != (process.id, holding.epoch):
                raise Violation(f"{me} may plan partition {partition}, but has read that it lost it")
            other, epoch = owners.setdefault(partition, (me, holding.epoch))
            lost = (partition, min(epoch, holding.epoch))
            if other != me and (epoch == holding.epoch or lost not in state.forced):
                raise Violation(f"{other} and {me} may both plan partition {partition}")


# --- a process's requests ----------------------------------------------------------------------------------------


def _replace_process(state: State, number: int, process: Process, **changes: Any) -> State:
    processes = (*state.processes[:number], process, *state.processes[number + 1 :])
    return state._replace(processes=processes, **changes)


def _spend(state: State, bound: str) -> State:
    """Subtract one from the remaining events of the kind `bound`, if they are limited."""
    number = getattr(state.left, bound)
    return state if number is None else state._replace(left=state.left._replace(**{bound: number - 1}))


def _handle(state: State, process: Process, input: protocol.Input) -> tuple[MemberEngine, list[protocol.Output]]:
    """A copy of the engine that has handled `input`, and its outputs. The copy ignores when work is due. Copying is
    sufficient because all fields are immutable, except the turn, which changes only until it writes."""
    engine = copy.copy(process.engine)
    assert engine is not None
    engine._pace = Pace()
    return engine, engine.handle(input, state.clocks)


def _start(state: State, number: int) -> State:
    id = state.processes[number].id
    disk = state.disks[id]
    disk = disk._replace(starts=disk.starts + 1)
    settings = Settings(
        cooperative,
        float(LEASE),
        float(_HANDOVER_TIMEOUT),
        strategy_name="cooperative",
        lineage=f"lineage {id}",
        balance_interval=LEASE / 6,
        reactive=True,
    )
    engine = MemberEngine(
        Author(id, f"{id}.{disk.starts}"),
        settings,
        _RNG,
        query=QueryState(disk.progress),
        resume=disk.resume,
        latest_ms=1,
    )
    disks = {**state.disks, id: disk}
    return _replace_process(_spend(state, "starts"), number, Process(id, engine), disks=disks)


def _kill(state: State, number: int) -> State:
    process = state.processes[number]
    stray = process.request if process.phase == "write" else state.stray
    return _replace_process(state, number, Process(process.id), stray=stray)


def _read(state: State, number: int) -> State:
    process = state.processes[number]
    engine, _ = _handle(state, process, protocol.Tick())
    return _replace_process(state, number, process._replace(engine=engine, phase="read", request=state.table))


def _serve_late(state: State, number: int, serve: _Step) -> State:
    return serve(_spend(state, "delays"), number)


def _receive_snapshot(state: State, number: int) -> State:
    process = state.processes[number]
    snapshot, row = process.request, process.request.members.get(process.id)
    assert process.engine is not None
    joined, own = process.engine._member.joined, process.engine.author.incarnation
    engine, outputs = _handle(state, process, protocol.GroupRead(snapshot, tuple(state.covered), 1))
    if any(isinstance(output, protocol.ResolvePositions) for output in outputs):
        outputs = engine.handle(
            protocol.PositionsResolved(dict.fromkeys(state.covered, Position.before(0))), state.clocks
        )
    if (ended := _check_failure(state, number, engine, outputs)) is not None:
        return ended
    if joined and row is not None and row.incarnation != own:
        raise Violation(f"{own} has read that {row.incarnation} has joined, and continues")
    changes = [output.changes for output in outputs if isinstance(output, protocol.CommitChanges)]
    if changes:
        process = process._replace(engine=engine, phase="write", request=tuple(changes[0]))
    else:
        process = process._replace(engine=engine, phase="", request=None)
    return _replace_process(state, number, process)


def _commit(state: State, number: int) -> State:
    """Apply the commit to the current table."""
    process = state.processes[number]
    outcome = apply(state.table, process.request)
    if outcome.after is not outcome.before:
        outcome = replace(outcome, after=replace(outcome.after, version=state.table.version + 1), seconds=0.0)
        state = _apply_outcome(state, outcome)
    return _replace_process(state, number, process._replace(phase="answer", request=outcome))


def _receive_outcome(state: State, number: int) -> State:
    process = state.processes[number]
    engine, outputs = _handle(state, process, protocol.Committed(process.request))
    ended = _check_failure(state, number, engine, outputs)
    return ended or _replace_process(state, number, process._replace(engine=engine, phase="", request=None))


def _fail(state: State, number: int) -> State:
    process = state.processes[number]
    stray = process.request if process.phase == "write" else state.stray
    engine, _ = _handle(state, process, protocol.StoreFailed(writing=process.phase != "read"))
    return _replace_process(
        _spend(state, "faults"), number, process._replace(engine=engine, phase="", request=None), stray=stray
    )


def _check_failure(state: State, number: int, engine: MemberEngine, outputs: list[protocol.Output]) -> State | None:
    """The state after the process failed; None if it did not fail."""
    process = state.processes[number]
    for output in outputs:
        if isinstance(output, protocol.Fail):
            row = state.table.members.get(process.id)
            if row is None or row.incarnation == engine.author.incarnation:
                raise Violation(f"{engine.author.incarnation} fails: {output.error}")
            return _replace_process(state, number, Process(process.id))
    return None


# --- the table ---------------------------------------------------------------------------------------------------


def _apply_outcome(state: State, outcome: Outcome) -> State:
    """The state after a commit, which is checked. Invalidates the stray commit."""
    before, after, forced = outcome.before.leases, outcome.after.leases, set(state.forced)
    for transition in outcome.accepted:
        old = before.get(getattr(transition, "partition", ""))
        if old is None:
            continue
        if isinstance(transition, Checkpoint):
            row = outcome.after.members.get(transition.by.id) or outcome.before.members.get(transition.by.id)
            if transition.epoch != old.epoch or (row and row.incarnation != transition.by.incarnation):
                raise Violation(f"a checkpoint of {transition.by.incarnation} in epoch {transition.epoch} is accepted")
        if isinstance(transition, Claim) and _is_forced(state, transition, old):
            forced.add((old.partition, old.epoch))
        if isinstance(transition, (HandOver, Release)):
            for process in state.processes:
                if process.engine and process.engine.author == transition.by and old.partition in (process.batch or ()):
                    raise Violation(f"{process.id} gives partition {old.partition} back during a batch")
    for partition, lease in after.items():
        old = before.get(partition, Lease(partition))
        if lease.epoch < old.epoch or (lease.epoch == old.epoch and lease.owner not in (None, old.owner)):
            raise Violation(f"{old.owner} has epoch {old.epoch}, and then {lease.owner} has {lease.epoch}")
        if old.checkpoint and (lease.checkpoint is None or lease.checkpoint.next < old.checkpoint.next):
            raise Violation(f"the checkpoint of partition {partition} falls to {lease.checkpoint}")
        if lease.checkpoint and lease.checkpoint.next > state.covered[partition]:
            raise Violation(f"event {lease.checkpoint.next - 1} of partition {partition} counts as read, and was not")
    return state._replace(table=outcome.after, stray=(), forced=_still_unknown(state, forced))


def _is_forced(state: State, claim: Claim, old: Lease) -> bool:
    """Whether the owner of `old` might not know yet that its lease has ended, because a later process of the same
    member has claimed it, or because its handover was overdue. Raises `Violation` if the claim is not valid."""
    if old.owner == claim.by.id:
        return True
    if old.owner is None or claim.unchanged_counter == old.counter:
        return False
    handover = old.handover
    if handover is None or handover.to != claim.by.id:
        raise Violation(f"{claim.by.incarnation} takes partition {old.partition} from {old.owner} without a reason")
    if state.clocks.wall_ms < handover.requested_at_ms + handover.timeout_ms:
        raise Violation(f"{claim.by.incarnation} takes partition {old.partition} before the handover is overdue")
    return True


def _still_unknown(state: State, forced: set[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    """The entries of `forced` that some process might not know yet."""
    known = set()
    for process in state.processes:
        if process.engine is not None:
            snapshots = [process.engine.leases]
            if isinstance(process.request, Snapshot):
                snapshots.append(process.request.leases)
            elif isinstance(process.request, Outcome):
                snapshots.append(process.request.after.leases)
            known |= {(p, lease.epoch) for leases in snapshots for p, lease in leases.items()}
    return frozenset(forced & known)


def _arrive_stray(state: State) -> State:
    outcome = apply(state.table, state.stray)
    if outcome.after is outcome.before:
        return state._replace(stray=())
    return _apply_outcome(state, replace(outcome, after=replace(outcome.after, version=state.table.version + 1)))


def _request(state: State, lease: Lease, to: Member) -> State:
    """Request a handover."""
    change = RequestHandover(
        by=Author(to.id, to.incarnation),
        at_ms=state.clocks.wall_ms,
        partition=lease.partition,
        epoch=lease.epoch,
        to=to.id,
        timeout_ms=1000 * _HANDOVER_TIMEOUT,
    )
    outcome = apply(state.table, [change])
    return _apply_outcome(
        _spend(state, "requests"), replace(outcome, after=replace(outcome.after, version=state.table.version + 1))
    )


# --- the query and time ------------------------------------------------------------------------------------------


def _begin(state: State, number: int) -> State:
    """Begin a batch with one event per partition. Its readers disconnect readers with lower epochs."""
    process = state.processes[number]
    engine = copy.copy(process.engine)
    assert engine is not None
    holdings, batch, opened = engine.readable(state.now), {}, dict(state.opened)
    engine.begin_batch({p: holding.epoch for p, holding in holdings.items()}, state.now)
    for p, holding in holdings.items():
        batch[p] = (holding.epoch, holding.checkpoint.next, opened.get(p, 0) > holding.epoch)
        opened[p] = max(opened.get(p, 0), holding.epoch)
    processes = [
        other._replace(batch={p: (e, at, cut or opened[p] > e) for p, (e, at, cut) in other.batch.items()})
        if other.batch
        else other
        for other in state.processes
    ]
    processes[number] = process._replace(engine=engine, batch=batch)
    resume = {p: ResumePoint(first, 0, epoch) for p, (epoch, first, _) in batch.items()}
    disks = {**state.disks, process.id: state.disks[process.id]._replace(resume=resume)}
    return _spend(state, "batches")._replace(processes=tuple(processes), opened=opened, disks=disks)


def _finish(state: State, number: int) -> State:
    """Finish the batch. The query reports all events of the batch, even those that a disconnected reader has not
    read."""
    process = state.processes[number]
    engine, covered = copy.copy(process.engine), dict(state.covered)
    assert engine is not None
    assert process.batch is not None
    for p, (_, first, cut) in process.batch.items():
        if first > covered[p]:
            raise Violation(f"{process.id} reads partition {p} from {first}, and {covered[p]} was not read")
        if not cut:
            covered[p] = max(covered[p], first + 1)
    progress = {p: Progress(epoch, Position(first)) for p, (epoch, first, _) in process.batch.items()}
    engine.finish_batch(progress)
    disk = Disk(state.disks[process.id].starts, {}, progress)
    disks = {**state.disks, process.id: disk}
    return _replace_process(state, number, process._replace(engine=engine, batch=None), covered=covered, disks=disks)


def _pass_time(state: State) -> State:
    return state._replace(now=state.now + STEP)


# --- without faults ----------------------------------------------------------------------------------------------


def without_faults(state: State) -> str:
    """The next action if there are no more faults: processes start, get responses and read all changes, and then time
    passes."""
    running = {process.id for process in state.processes if process.engine is not None}
    for process in state.processes:
        if process.phase and process.engine:
            return f"{process.engine.author.incarnation} {'commits' if process.phase == 'write' else 'gets the answer'}"
    for process in state.processes:
        engine = process.engine
        if engine is None:
            if process.id not in running and state.left.starts != 0:
                return f"{process.id}.{state.disks[process.id].starts + 1} starts"
        elif process.batch is not None:
            return f"{engine.author.incarnation} finishes its batch"
        else:
            look = engine._member.read_state
            if look.at != state.now or look.snapshot is None or look.snapshot.version != state.table.version:
                return f"{engine.author.incarnation} reads the table"
    return PASSES


def has_settled(state: State) -> bool:
    """Whether all partitions are owned, plannable and evenly distributed."""
    running = [process for process in state.processes if process.engine is not None]
    planned = [len(process.engine.readable(state.now)) for process in running if process.engine]
    even = max(planned, default=0) - min(planned, default=0) <= 1
    return not running or (even and sum(planned) == len(state.covered))


def settle(state: State) -> State:
    """The state after all members have started and the group has settled. None of the bounded events have happened."""
    after = state._replace(left=Budget(starts=None))
    for _ in range(_MAX_SETTLING_ACTIONS):
        if (label := without_faults(after)) == PASSES and has_settled(after):
            return after._replace(left=state.left)
        after = dict(actions(after))[label]()
    raise Violation(f"the group has not settled within {_MAX_SETTLING_ACTIONS} actions")
