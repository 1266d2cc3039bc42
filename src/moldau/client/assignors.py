"""Who reads what: the assignors that a classic group's leader runs, as functions of topics and subscriptions.

`range` and `roundrobin` give what Kafka's Java classes of these names give. `sticky` and `cooperative-sticky` give
every partition to one member, as evenly as the subscriptions allow, and among all such ways one with the fewest moves;
which of them may differ from Java's choice. Racks matter to `range` only, and only where members and replicas name them
(KIP-881). Nothing here knows of requests: `group_protocol` has the bytes, `group_member` the membership.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from moldau.kernel import TopicPartition

NO_GENERATION = -1

# Per topic, for each partition the racks that hold a replica of it.
TopicRacks = Mapping[str, Sequence[frozenset[str]]]
Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member asks for, and what it held in `generation`."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    instance_id: str | None = None
    rack: str | None = None


Subscriptions = Mapping[str, Subscription]
Assign = Callable[[TopicRacks, Subscriptions], Assignment]


@dataclass(frozen=True, slots=True)
class Assignor:
    """`cooperative`: members keep what they have through a rebalance and give up what they are told to (KIP-429)."""

    name: str
    assign: Assign
    cooperative: bool = False


def without_racks(partitions: Mapping[str, int]) -> dict[str, list[frozenset[str]]]:
    """Topics by their number of partitions, where nobody knows the racks."""
    return {topic: [frozenset()] * count for topic, count in partitions.items()}


def _java_order(text: str) -> bytes:
    """Java compares strings by UTF-16 units; any order does, as long as every leader has the same."""
    return text.encode("utf-16-be", "surrogatepass")


def _in_order(members: Iterable[str], subscriptions: Subscriptions) -> list[str]:
    """Static members by instance id, then the others by member id."""

    def place(member: str) -> tuple[bool, bytes]:
        instance_id = subscriptions[member].instance_id
        return (True, _java_order(member)) if instance_id is None else (False, _java_order(instance_id))

    return sorted(members, key=place)


def _subscribers(topics: TopicRacks, subscriptions: Subscriptions) -> dict[str, list[str]]:
    """The members of each topic that has both partitions and members, by topic name."""
    found: dict[str, list[str]] = defaultdict(list)
    for member in _in_order(subscriptions, subscriptions):
        for topic in subscriptions[member].topics:
            if topics.get(topic):
                found[topic].append(member)
    return {topic: found[topic] for topic in sorted(found, key=_java_order)}


# -- range -------------------------------------------------------------------------------------------------------------


class _RangeTopic:
    """One topic's partitions, and how many each of its members may still take."""

    def __init__(self, name: str, racks: Sequence[frozenset[str]], members: list[str]) -> None:
        self.name = name
        self.racks = racks
        self.members = members
        self.left = list(range(len(racks)))
        self._share, self._extras = divmod(len(racks), len(members))
        self._taken: Counter[str] = Counter()

    def room(self, member: str) -> int:
        return max(0, self._share + (self._extras > 0) - self._taken[member])

    def take(self, member: str, partitions: list[int]) -> list[TopicPartition]:
        self._taken[member] += len(partitions)
        if partitions and self._taken[member] > self._share:
            self._extras -= 1
        self.left = [partition for partition in self.left if partition not in partitions]
        return [TopicPartition(self.name, partition) for partition in partitions]

    def wants_racks(self, rack_of: Mapping[str, str]) -> bool:
        """Racks help when some replica is near a member, and not every partition is on all racks."""
        replica_racks = frozenset().union(*self.racks)
        member_racks = {rack_of[member] for member in self.members if member in rack_of}
        return not replica_racks.isdisjoint(member_racks) and any(racks != replica_racks for racks in self.racks)


def assign_range(topics: TopicRacks, subscriptions: Subscriptions) -> Assignment:
    """Each topic is cut into ranges, one per member: partition n of equal topics meets at one member."""
    assignment: Assignment = {member: [] for member in subscriptions}
    rack_of = {member: one.rack for member, one in subscriptions.items() if one.rack}
    shares = [
        _RangeTopic(topic, topics[topic], members) for topic, members in _subscribers(topics, subscriptions).items()
    ]
    rack_aware = any(share.wants_racks(rack_of) for share in shares)
    if rack_aware:
        _take_near(shares, rack_of, assignment)
    for share in shares:
        for member in share.members:
            assignment[member] += share.take(member, share.left[: share.room(member)])
    return {member: sorted(given) for member, given in assignment.items()} if rack_aware else assignment


def _take_near(shares: list[_RangeTopic], rack_of: Mapping[str, str], assignment: Assignment) -> None:
    """Give members the partitions with a replica in their rack, up to their ranges' sizes."""

    def near(share: _RangeTopic, member: str, partition: int) -> bool:
        return member not in rack_of or rack_of[member] in share.racks[partition]

    alike: dict[tuple[tuple[str, ...], int], list[_RangeTopic]] = defaultdict(list)
    for share in shares:
        alike[tuple(share.members), _racked_count(share, rack_of)].append(share)
    for (members, count), group in alike.items():
        if len(group) > 1:
            _take_near_together(members, count, group, near, assignment)
        elif group[0].wants_racks(rack_of):
            for member in members:
                fitting = [partition for partition in group[0].left if near(group[0], member, partition)]
                assignment[member] += group[0].take(member, fitting[: group[0].room(member)])


def _racked_count(share: _RangeTopic, rack_of: Mapping[str, str]) -> int:
    """Topics of equal size are kept together; without a rack among the members there is nothing to gain, as in Java."""
    return len(share.racks) if any(member in rack_of for member in share.members) else 0


def _take_near_together(
    members: Sequence[str],
    count: int,
    group: list[_RangeTopic],
    near: Callable[[_RangeTopic, str, int], bool],
    assignment: Assignment,
) -> None:
    """Co-partitioned topics: partition n of all of them goes to one member, or is left for the ranges."""
    for partition in range(count):
        for member in members:
            if all(near(share, member, partition) and share.room(member) for share in group):
                for share in group:
                    assignment[member] += share.take(member, [partition])
                break


# -- round robin -------------------------------------------------------------------------------------------------------


def assign_round_robin(topics: TopicRacks, subscriptions: Subscriptions) -> Assignment:
    """All partitions of all topics are dealt out in turn; members that do not want a topic are passed over."""
    assignment: Assignment = {member: [] for member in subscriptions}
    turn = cycle(_in_order(subscriptions, subscriptions))
    for topic in _subscribers(topics, subscriptions):
        for partition in range(len(topics[topic])):
            member = next(member for member in turn if topic in subscriptions[member].topics)
            assignment[member].append(TopicPartition(topic, partition))
    return assignment


# -- sticky ------------------------------------------------------------------------------------------------------------


def assign_sticky(topics: TopicRacks, subscriptions: Subscriptions) -> Assignment:
    """As even as can be, with the fewest moves from what members had."""
    homes = _homes(topics, subscriptions)
    subscribers = _subscribers(topics, subscriptions)
    wanted = {topic: set(members) for topic, members in subscribers.items()}
    held: dict[str, dict[TopicPartition, None]] = {member: {} for member in _in_order(subscriptions, subscriptions)}
    free: list[TopicPartition] = []
    for topic in sorted(subscribers, key=lambda topic: len(subscribers[topic])):
        for partition in range(len(topics[topic])):
            where = TopicPartition(topic, partition)
            home = homes.get(where)
            if home is not None and home in wanted[topic]:
                held[home][where] = None
            else:
                free.append(where)
    for where in free:
        held[min(subscribers[where.topic], key=lambda member: len(held[member]))][where] = None
    if len({frozenset(members) for members in wanted.values()}) <= 1:
        _level(held, next(iter(subscribers.values()), []), homes)
    else:
        _Balance(held, subscribers, homes).improve()
    return {member: sorted(held[member]) for member in subscriptions}


def assign_cooperative_sticky(topics: TopicRacks, subscriptions: Subscriptions) -> Assignment:
    """`sticky` in two steps: what changes hands is given to nobody until its owner has let go and joined again."""
    claimants: dict[TopicPartition, set[str]] = defaultdict(set)
    for member, subscription in subscriptions.items():
        for where in subscription.owned:
            claimants[where].add(member)
    homes = _homes(topics, subscriptions)

    def is_free(where: TopicPartition, member: str) -> bool:
        return homes.get(where) == member or not claimants[where] or claimants[where] == {member}

    return {
        member: [where for where in given if is_free(where, member)]
        for member, given in assign_sticky(topics, subscriptions).items()
    }


def _homes(topics: TopicRacks, subscriptions: Subscriptions) -> dict[TopicPartition, str]:
    """Who held what: of several claims the newest generation's is true; two of one generation cancel each other."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
    for member, subscription in subscriptions.items():
        for where in dict.fromkeys(subscription.owned):
            if where.partition < len(topics.get(where.topic, ())):
                claims[where].append((subscription.generation, member))
    homes: dict[TopicPartition, str] = {}
    for where, found in claims.items():
        newest = max(generation for generation, _ in found)
        owners = [member for generation, member in found if generation == newest]
        if len(owners) == 1:
            homes[where] = owners[0]
    return homes


def _level(
    held: dict[str, dict[TopicPartition, None]], members: Sequence[str], homes: Mapping[TopicPartition, str]
) -> None:
    """Everyone wants the same topics: those with more than their share give the rest to those with less."""
    share, extras = divmod(sum(len(held[member]) for member in members), len(members) or 1)

    def held_at_home(member: str) -> int:
        return sum(homes.get(where) == member for where in held[member])

    # Who had most keeps one more than the others: that is one move less.
    larger = set(sorted(members, key=held_at_home, reverse=True)[:extras])
    room = {member: share + (member in larger) for member in members}
    spare: list[TopicPartition] = []
    for member in members:
        # What is new to a member leaves it first: that is no move at all.
        leaving = sorted(held[member], key=lambda where: homes.get(where) == member)
        for where in leaving[: max(0, len(held[member]) - room[member])]:
            del held[member][where]
            spare.append(where)
    short = [member for member in members for _ in range(room[member] - len(held[member]))]
    for where, member in zip(sorted(spare), short, strict=True):
        held[member][where] = None


class _Balance:
    """Members want different topics: improve what they hold until no chain of hand-overs makes it better.

    Hand-overs are the edges of a graph of members. One costs 1 when a partition leaves its home and -1 when it returns;
    a chain that ends at another member than it began also changes two members' loads, which costs the change of the sum
    of their squares, and this outweighs any number of moves. Minimal cost means that no cycle is negative (the chain's
    two ends are joined through `_LOADS`), so negative cycles are looked for (Bellman and Ford) and played until there
    is none.
    """

    _LOADS = ""

    def __init__(
        self,
        held: dict[str, dict[TopicPartition, None]],
        subscribers: Mapping[str, Sequence[str]],
        homes: Mapping[TopicPartition, str],
    ) -> None:
        self._held = held
        self._subscribers = subscribers
        self._homes = homes
        self._load_weight = 2 * sum(len(partitions) for partitions in held.values()) + 1
        self._edges: dict[str, dict[str, tuple[int, TopicPartition]]] = {}
        for member in held:
            self._find_edges(member)

    def improve(self) -> None:
        while chain := self._negative_cycle():
            for giver, taker in chain:
                if self._LOADS not in (giver, taker):
                    where = self._edges[giver][taker][1]
                    del self._held[giver][where]
                    self._held[taker][where] = None
            for member in {member for pair in chain for member in pair} - {self._LOADS}:
                self._find_edges(member)

    def _find_edges(self, giver: str) -> None:
        """The cheapest partition that `giver` could hand to each other member."""
        edges: dict[str, tuple[int, TopicPartition]] = {}
        for where in self._held[giver]:
            home = self._homes.get(where)
            for taker in self._subscribers[where.topic]:
                cost = (home == giver) - (home == taker)
                if taker != giver and (taker not in edges or cost < edges[taker][0]):
                    edges[taker] = (cost, where)
        self._edges[giver] = edges

    def _costs(self) -> list[tuple[str, str, int]]:
        costs = [(giver, taker, cost) for giver in self._held for taker, (cost, _) in self._edges[giver].items()]
        for member, partitions in self._held.items():
            load = len(partitions)
            costs.append((self._LOADS, member, -(2 * load - 1) * self._load_weight))
            costs.append((member, self._LOADS, (2 * load + 1) * self._load_weight))
        return costs

    def _negative_cycle(self) -> list[tuple[str, str]]:
        costs = self._costs()
        distance = dict.fromkeys([self._LOADS, *self._held], 0)
        before: dict[str, str] = {}
        while True:
            touched = False
            for giver, taker, cost in costs:
                if distance[giver] + cost < distance[taker]:
                    distance[taker] = distance[giver] + cost
                    before[taker] = giver
                    touched = True
            # A cycle among the predecessors is a negative one; when there is none, every round shortens some way for
            # good, and the rounds end.
            if (cycle := _cycle_in(before)) or not touched:
                return cycle


def _cycle_in(before: Mapping[str, str]) -> list[tuple[str, str]]:
    """The edges of some cycle in a graph where each node has at most one predecessor."""
    seen_from: dict[str, str] = {}
    for start in before:
        node = start
        while node in before and node not in seen_from:
            seen_from[node] = start
            node = before[node]
        if node in before and seen_from[node] == start:
            edges = [(before[node], node)]
            while edges[-1][0] != node:
                edges.append((before[edges[-1][0]], edges[-1][0]))
            return edges
    return []


ASSIGNORS: dict[str, Assignor] = {
    one.name: one
    for one in (
        Assignor("range", assign_range),
        Assignor("roundrobin", assign_round_robin),
        Assignor("sticky", assign_sticky),
        Assignor("cooperative-sticky", assign_cooperative_sticky, cooperative=True),
    )
}
