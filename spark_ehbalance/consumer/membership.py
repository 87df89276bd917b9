"""One consumer's part in its group: a member like a Spark query's, whose partitions an azure-eventhub client reads.

The group's strategy decides which partitions are the consumer's, and a lease keeper renews them. The client's own load
balancing, which runs once per `load_balancing_interval`, finds what was decided. So partitions are taken only while the
client waits for the result: it opens their receivers at once.
"""

from __future__ import annotations

import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from spark_ehbalance.consumer.hub import Hub
from spark_ehbalance.errors import EhBalanceError, HubUnavailableError
from spark_ehbalance.leases.model import Author, Handover
from spark_ehbalance.leases.transitions import Claim, RequestHandover
from spark_ehbalance.member.keeper import Keeper
from spark_ehbalance.member.membership import Holding
from spark_ehbalance.member.query import Progress
from spark_ehbalance.member.settings import Settings
from spark_ehbalance.member.turn import Participant, Sight
from spark_ehbalance.stores.base import REQUEST_TIMEOUT, LeaseStore
from spark_ehbalance.strategies import DEFAULT_STRATEGY, Decision, View, strategy
from spark_ehbalance.text import logger
from spark_ehbalance.values.defaults import BALANCE_INTERVAL
from spark_ehbalance.values.position import Position

_LOG = logger(__name__)

#: Seconds that one of the client's calls waits for partitions to be handed over, or for a commit: as long as the store
#: waits for its storage.
_PATIENCE = REQUEST_TIMEOUT

#: A partition that is to be given away is let go after this part of the time that the next owner waits: before it is
#: claimed by force, so that no request of the two crosses the other.
_LET_GO = 0.8

#: Seconds between two looks at what is due: the clients' time may stand still.
_LEAST_WAIT = 0.05


@dataclass(frozen=True, slots=True)
class Times:
    """How a consumer behaves, in seconds. `expiration`: a client that has not claimed its partitions for so long is
    taken for dead."""

    load_balancing_interval: float
    expiration: float
    lease_duration: float
    handover_timeout: float


class _Wishes:
    """The strategy of a consumer's member: the group's, but nothing is taken except `allowed` partitions; None: all."""

    def __init__(self) -> None:
        self.allowed: Collection[str] | None = ()
        self.asked = False
        self._group = strategy(DEFAULT_STRATEGY)

    def __call__(self, view: View) -> Decision:
        self.asked = True
        decision, allowed = self._group(view), self.allowed
        if allowed is None:
            return decision
        kept = tuple(
            each
            for each in decision.transitions
            if not isinstance(each, (Claim, RequestHandover)) or each.partition in allowed
        )
        if len(kept) == len(decision.transitions):
            return decision
        return replace(decision, reason=f"{decision.reason}; only what the client asks for", transitions=kept)


class ConsumerMember:
    """The membership of the consumer with owner id `owner`, from `start` on. For several threads.

    `used` maps the partitions that the client reads to the epochs that it began with. `left` are those that it has lost
    while it read them: its receivers may still be open. `error` is what has ended the membership against its
    will. `stopped`: it has ended, also because the client was silent for too long.
    """

    def __init__(
        self,
        owner: str,
        times: Times,
        open_store: Callable[[], LeaseStore],
        hub: Hub,
        client_time: Callable[[], float],
    ) -> None:
        """`client_time`: monotonic seconds, without those for which the store's clients wait for the store."""
        self.owner = owner
        self.used: dict[str, int] = {}
        self.left: set[str] = set()
        self._claimed_again: set[str] = set()  # with the last claim, of what was `left`
        self.error: EhBalanceError | None = None
        self._times = times
        self._hub = hub
        self._client_time = client_time
        self._wishes = _Wishes()
        self._taking = threading.Lock()
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._alive_at = client_time()
        #: What the client reads and must be given away: the request, or None in a drain, and since when that is known.
        self._asked: dict[str, tuple[Handover | None, float]] = {}
        self.stopped = False
        settings = Settings(
            strategy=self._wishes,
            strategy_name=DEFAULT_STRATEGY,
            lease_duration=times.lease_duration,
            handover_timeout=times.handover_timeout,
            host=socket.gethostname(),
            balance_interval=min(times.load_balancing_interval, BALANCE_INTERVAL),
            ends_at_other_hub=True,
        )
        participant = Participant(Author(owner, uuid.uuid4().hex), settings, random.Random())
        self._keeper = Keeper(participant, open_store, hub, changed=self._changed)
        self._thread = threading.Thread(target=self._watch, name="ehbalance-consumer", daemon=True)

    def start(self) -> None:
        """Join the group, which `take` waits for."""
        self._keeper.sight()  # from now on
        self._keeper.start()
        self._thread.start()

    def stop(self) -> None:
        """Give everything back and leave the group."""
        self.stopped = True
        self._changed.set()
        self._keeper.stop()

    def take(self, allowed: Collection[str] | None) -> None:
        """Take those of the `allowed` partitions (None: of all) that should be this consumer's, and wait until what
        others hand over has come, or the patience is over. Raises what has ended the keeper."""
        deadline = time.monotonic() + min(_PATIENCE, self._times.expiration / 3)
        if not self.used and not self._keeper.kept():
            self._alive_at = self._client_time()  # a client that has nothing need not claim anything
        with self._taking:
            self._wishes.allowed, self._wishes.asked = allowed, False
            try:
                # A second time if a decision that was under way has ended the first wait.
                for _ in range(2):
                    self._keeper.take(max(0.0, deadline - time.monotonic()))
                    if self._wishes.asked:
                        break
            finally:
                self._wishes.allowed = ()

    def sight(self) -> Sight | None:
        """What is known of all leases; None before the first look. Raises what has ended the keeper."""
        return self._keeper.sight()

    def readable(self) -> dict[str, Holding]:
        """The partitions that the client may read: owned, and not to be given away where it does not read yet; where
        it does, it goes on until it has been let go, and begins again if the lease has another epoch."""
        with self._lock:
            staying = self._keeper.holdings()
            return {
                p: each
                for p, each in self._keeper.kept().items()
                if (p in staying if p not in self.used else self.used[p] == each.epoch)
            }

    def use(self, partitions: Collection[str]) -> dict[str, Holding]:
        """From now on the client reads those of `partitions` that it may read, which are returned, and no others.

        What is to be given away is let go if the client has read all of it: it closes the receiver now, so that only an
        event that comes at this very moment is read twice.
        """
        readable = self.readable()
        read_to_end = self._read_to_end({p: readable[p] for p in readable.keys() - self._keeper.holdings().keys()})
        with self._lock:
            chosen = {p: readable[p] for p in partitions if p in readable and p not in read_to_end}
            again = (chosen.keys() - self.used.keys()) & self.left
            if chosen.keys() - self.used.keys() - again:  # `opened` could not tell which of them it is about
                chosen = {p: each for p, each in chosen.items() if p not in again}
                again = set()
            self._claimed_again = again
            self.left |= self.used.keys() - chosen.keys()
            # In its first epoch a partition has no former owner.
            started = {p: each.epoch for p, each in chosen.items() if p not in self.used and each.epoch > 1}
            self.used = {p: each.epoch for p, each in chosen.items()}
            self._keeper.use(self.used)
        if started:
            self._hub.clear(started)
        self._alive_at = self._client_time()
        return chosen

    def checkpoint(self, partition: str, position: Position) -> bool:
        """Commit that everything up to `position` is processed; returns whether the client may read on. The partition
        may be handed over in the same commit. Raises `StoreUnavailableError` if the commit does not succeed in time."""
        epoch = self.used.get(partition)
        if epoch is None or partition in self.left:
            return False
        kept = self._keeper.checkpoint(partition, Progress(epoch, position), _PATIENCE)
        if not kept:
            self._drop(partition, epoch)
        return kept

    def opened(self) -> None:
        """The client has asked where to begin, so that it opens receivers of what it has claimed last. What was `left`
        is checkpointed only then: before, it comes from a receiver that does not know what has happened since."""
        with self._lock:
            self.left -= self._claimed_again

    def closed(self, partition: str) -> None:
        """The client has closed the receiver of a partition that it had lost."""
        with self._lock:
            self.left.discard(partition)

    def give_back(self, partition: str) -> None:
        """The client has closed the receiver of `partition`. If it has no other, it may have been stopped, which it
        does not say: then the consumer leaves."""
        with self._lock:
            self.used.pop(partition, None)
            self.left.discard(partition)
            stays = bool(self.used)
        if stays:
            self._keeper.give_back(partition, _PATIENCE)
        else:
            self.stop()

    # --- inside ------------------------------------------------------------------------------------------------

    def _read_to_end(self, holdings: Mapping[str, Holding]) -> Collection[str]:
        """Those of `holdings` that have no event after their checkpoints, as far as the hub tells."""
        if not holdings:
            return ()
        try:
            return self._hub.read_to_end({p: each.checkpoint for p, each in holdings.items()})
        except HubUnavailableError as error:
            _LOG.info("partitions %s stay until a checkpoint or the deadline: %s", ", ".join(holdings), error)
            return ()

    def _drop(self, partition: str, epoch: int) -> None:
        with self._lock:
            if self.used.get(partition) == epoch:
                del self.used[partition]
                self.left.add(partition)
                self._keeper.use(self.used)

    def _watch(self) -> None:
        """Let go what was not checkpointed in time, and leave when the client is silent."""
        wait = 0.0
        while not self.stopped:
            self._changed.wait(wait)
            self._changed.clear()
            now = time.monotonic()
            left = self._alive_at + self._times.expiration - self._client_time()
            if left < 0:
                _LOG.warning(
                    "consumer %s has not claimed its partitions for %g s, as it does until it ends: they are given "
                    "back", self.owner, self._times.expiration,
                )  # fmt: skip
                self.stop()
                return
            try:
                wait = max(_LEAST_WAIT, min(left, self._let_go(now) - now))
            except EhBalanceError as error:  # which has ended the keeper
                self.error = error
                self.stop()
                return

    def _let_go(self, now: float) -> float:
        """Let go the partitions that have had to be given away for too long; returns when the next one is due."""
        due, sight, asked = float("inf"), self._keeper.sight(), dict[str, tuple[Handover | None, float]]()
        staying = self._keeper.holdings()
        for partition, holding in self._keeper.kept().items():
            if partition in staying or self.used.get(partition) != holding.epoch:
                continue
            lease = sight.leases.get(partition) if sight else None
            handover = lease.handover if lease else None
            known = self._asked.get(partition)
            since = known[1] if known and known[0] == handover else now
            asked[partition] = handover, since
            ends = since + _LET_GO * (handover.timeout_ms / 1000 if handover else self._times.handover_timeout)
            if ends <= now:
                _LOG.info("partition %s: given away without a checkpoint, which did not come in time", partition)
                self._drop(partition, holding.epoch)
            else:
                due = min(due, ends)
        self._asked = asked
        return due
