"""The assignors that a broker offers: who of a group gets which partitions. Pure, and the same for the same question.

uniform   as equal as the subscriptions allow, moving as little as possible; then near to the members' racks
range     per topic a run of neighbours to each member, the same run of every topic with as many partitions
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

TopicPartition = tuple[bytes, int]
Assignment = dict[str, dict[bytes, frozenset[int]]]


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """A member as an assignor sees it; `target` is what it was given last."""

    topic_ids: frozenset[bytes]
    target: Mapping[bytes, frozenset[int]] = field(default_factory=dict)
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssignedTopic:
    partition_count: int
    # Of each partition, or nothing when nobody knows.
    racks: Sequence[frozenset[str]] = ()


Members = Mapping[str, AssignedMember]
Topics = Mapping[bytes, AssignedTopic]
Assignor = Callable[[Members, Topics], Assignment]


# -- range -------------------------------------------------------------------------------------------------------------


def assign_range(members: Members, topics: Topics) -> Assignment:
    """Static members come first, by their instance ids: whoever restarts gets the same run again."""
    order = sorted(members, key=lambda member: _range_rank(member, members[member].instance_id))
    assignment: Assignment = {member: {} for member in members}
    for topic_id in sorted(topics):
        subscribers = [member for member in order if topic_id in members[member].topic_ids]
        if not subscribers:
            continue
        share, extra = divmod(topics[topic_id].partition_count, len(subscribers))
        start = 0
        for rank, member in enumerate(subscribers):
            end = start + share + (rank < extra)
            if end > start:
                assignment[member][topic_id] = frozenset(range(start, end))
            start = end
    return assignment


def _range_rank(member: str, instance_id: str | None) -> tuple[bool, str]:
    return instance_id is None, member if instance_id is None else instance_id


# -- uniform -----------------------------------------------------------------------------------------------------------


def assign_uniform(members: Members, topics: Topics) -> Assignment:
    if not members:
        return {}
    wants = {member.topic_ids for member in members.values()}
    shares = _Shares(members, topics)
    if len(wants) == 1:
        _share_equally(shares, topics.keys() & next(iter(wants)))
    else:
        _share_by_subscription(shares)
    return shares.assignment()


class _Shares:
    """Who has what while an assignment is made; begins with what members keep of their last targets."""

    def __init__(self, members: Members, topics: Topics) -> None:
        self.members = members
        self.topics = topics
        self.of: dict[str, dict[TopicPartition, None]] = {member: {} for member in sorted(members)}
        self.owner: dict[TopicPartition, str] = {}
        for member, share in self.of.items():
            about = members[member]
            for topic_id in sorted(about.target.keys() & about.topic_ids & topics.keys()):
                for partition in sorted(about.target[topic_id]):
                    place = (topic_id, partition)
                    if partition < topics[topic_id].partition_count and place not in self.owner:
                        share[place] = None
                        self.owner[place] = member

    def unowned(self, topic_ids: Iterable[bytes]) -> list[TopicPartition]:
        return [
            (topic_id, partition)
            for topic_id in sorted(topic_ids)
            for partition in range(self.topics[topic_id].partition_count)
            if (topic_id, partition) not in self.owner
        ]

    def give(self, place: TopicPartition, member: str) -> None:
        self.of[member][place] = None
        self.owner[place] = member

    def take_last(self, member: str) -> TopicPartition:
        place, _ = self.of[member].popitem()
        del self.owner[place]
        return place

    def move(self, place: TopicPartition, to: str) -> None:
        del self.of[self.owner[place]][place]
        self.give(place, to)

    def racks_of(self, place: TopicPartition) -> frozenset[str]:
        topic_id, partition = place
        racks = self.topics[topic_id].racks
        return racks[partition] if racks else frozenset()

    def assignment(self) -> Assignment:
        made: Assignment = {}
        for member, share in self.of.items():
            by_topic: dict[bytes, set[int]] = {}
            for topic_id, partition in share:
                by_topic.setdefault(topic_id, set()).add(partition)
            made[member] = {topic_id: frozenset(partitions) for topic_id, partitions in by_topic.items()}
        return made


def _share_equally(shares: _Shares, topic_ids: Iterable[bytes]) -> None:
    """Everyone wants the same: all get the same number, and one more those who have most already."""
    topic_ids = frozenset(topic_ids)
    total = sum(shares.topics[topic_id].partition_count for topic_id in topic_ids)
    share, extra = divmod(total, len(shares.of))
    by_size = sorted(shares.of, key=lambda member: -len(shares.of[member]))
    room: dict[str, int] = {}
    for rank, member in enumerate(by_size):
        quota = share + (rank < extra)
        while len(shares.of[member]) > quota:
            shares.take_last(member)
        if len(shares.of[member]) < quota:
            room[member] = quota - len(shares.of[member])
    for place in _fill_near(shares, room, shares.unowned(topic_ids)):
        _give_room(shares, room, place, next(iter(room)))


def _fill_near(shares: _Shares, room: dict[str, int], unowned: list[TopicPartition]) -> list[TopicPartition]:
    """Give to members with room that are in a rack of the partition; what is left."""
    near: dict[str, list[str]] = {}
    for member in reversed(room):
        rack = shares.members[member].rack_id
        if rack is not None:
            near.setdefault(rack, []).append(member)
    if not near:
        return unowned
    left = []
    for place in unowned:
        for rack in sorted(shares.racks_of(place)):
            candidates = near.get(rack, [])
            while candidates and candidates[-1] not in room:
                candidates.pop()
            if candidates:
                _give_room(shares, room, place, candidates[-1])
                break
        else:
            left.append(place)
    return left


def _give_room(shares: _Shares, room: dict[str, int], place: TopicPartition, member: str) -> None:
    shares.give(place, member)
    room[member] -= 1
    if not room[member]:
        del room[member]


def _share_by_subscription(shares: _Shares) -> None:
    """Unowned partitions go to whoever has least, those that fewest want first; then loads are levelled."""
    subscribers = {
        topic_id: tuple(member for member in shares.of if topic_id in shares.members[member].topic_ids)
        for topic_id in shares.topics
    }
    wanted = sorted(filter(subscribers.get, subscribers), key=lambda topic_id: len(subscribers[topic_id]))
    queues: dict[tuple[str, ...], _LeastLoaded] = {}
    for topic_id in wanted:
        group = subscribers[topic_id]
        queue = queues.get(group)
        if queue is None:
            queue = queues[group] = _LeastLoaded(shares, group)
        for place in shares.unowned([topic_id]):
            shares.give(place, queue.take(place))
    while any(_level(shares, topic_id, subscribers[topic_id]) for topic_id in wanted):
        pass


class _LeastLoaded:
    """Members by load. Loads only grow while this is used, so an entry is put right when it comes up."""

    def __init__(self, shares: _Shares, members: Iterable[str]) -> None:
        self._shares = shares
        self._rack_of = {member: shares.members[member].rack_id for member in members}
        self._racks = frozenset(self._rack_of.values())
        self._heap = [(len(shares.of[member]), member) for member in self._rack_of]
        heapq.heapify(self._heap)

    def take(self, place: TopicPartition) -> str:
        """The least loaded member; of several, one that is in a rack of the partition."""
        racks = self._shares.racks_of(place) & self._racks
        passed = [self._pop()]
        load = self._load(passed[0])
        while racks and self._rack_of[passed[-1]] not in racks and self._load(passed[-1]) == load and self._heap:
            passed.append(self._pop())
        is_near = self._rack_of[passed[-1]] in racks and self._load(passed[-1]) == load
        chosen = passed[-1] if is_near else passed[0]
        for member in passed:
            heapq.heappush(self._heap, (self._load(member) + (member == chosen), member))
        return chosen

    def _load(self, member: str) -> int:
        return len(self._shares.of[member])

    def _pop(self) -> str:
        while True:
            load, member = self._heap[0]
            now = self._load(member)
            if now == load:
                heapq.heappop(self._heap)
                return member
            heapq.heapreplace(self._heap, (now, member))


def _level(shares: _Shares, topic_id: bytes, subscribers: Sequence[str]) -> bool:
    """Move partitions of one topic from who has most to who has least, while it helps; whether any moved.

    Every move makes the sum of squared loads smaller, so levelling all topics again and again comes to an end.
    """
    held: dict[str, list[int]] = {member: [] for member in subscribers}
    for partition in range(shares.topics[topic_id].partition_count):
        held[shares.owner[topic_id, partition]].append(partition)
    loads = {member: len(shares.of[member]) for member in subscribers}
    # Entries that say another load than there is now are skipped: there is a newer one.
    least = [(load, member) for member, load in loads.items()]
    most = [(-load, member) for member, load in loads.items() if held[member]]
    heapq.heapify(least)
    heapq.heapify(most)
    has_moved = False
    while True:
        while least[0][0] != loads[least[0][1]]:
            heapq.heappop(least)
        while most and (-most[0][0] != loads[most[0][1]] or not held[most[0][1]]):
            heapq.heappop(most)
        if not most or -most[0][0] <= least[0][0] + 1:
            return has_moved
        giver, taker = most[0][1], least[0][1]
        partition = held[giver].pop()
        held[taker].append(partition)
        shares.move((topic_id, partition), taker)
        for member, change in ((giver, -1), (taker, 1)):
            loads[member] += change
            heapq.heappush(least, (loads[member], member))
            heapq.heappush(most, (-loads[member], member))
        has_moved = True


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
