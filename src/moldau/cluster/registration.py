"""Decisions about a node's membership: brokers and controllers register, heartbeats keep sessions and end fences.

Pure: image, session and request in, records and an answer out. A broker's epoch is the offset of its registration.
Messages are imported when they are first needed: a node alone never sees most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from moldau.cluster.brokers import (
    RESERVED_DIRECTORY_ID_MAX,
    PartitionPolicy,
    begin_shutdown,
    fence,
    leave,
    lose_directories,
    register_broker,
    register_controller,
    unfence,
)
from moldau.cluster.decision import Decision
from moldau.cluster.features import FeatureRange
from moldau.cluster.image import Endpoint, MetadataImage
from moldau.cluster.sessions import BrokerSessions, Session
from moldau.kernel import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
    from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
    from moldau.protocol.messages.controller_registration import ControllerRegistrationRequest


def decide_register_broker(
    image: MetadataImage,
    request: BrokerRegistrationRequest,
    *,
    cluster_id: str,
    next_offset: int,
    sessions: BrokerSessions,
    policy: PartitionPolicy,
    now_ms: int,
) -> Decision[int]:
    """The broker's epoch. A new incarnation waits until the old one's session is over, or its connection has broken.

    Of whom this controller has not heard yet it knows no connection: such a suspicion has to run out.
    """
    if request.cluster_id != cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}",
        )
    known = image.brokers.get(request.broker_id)
    is_new = known is None or known.incarnation_id != request.incarnation_id
    is_staying = known is not None and not known.fenced and not known.in_controlled_shutdown
    if is_staying and is_new and sessions.is_alive(request.broker_id, now_ms):
        session = sessions.find(request.broker_id)
        if session is not None and (session.suspect_until_ms is None or not session.is_heard):
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another broker is registered with that broker id. If the broker {request.broker_id} was recently"
                " restarted this should self-resolve once the heartbeat manager expires the broker's session.",
            )
    _check_directories(request)
    features = _ranges(request)
    _check_features(image, features)
    if known is not None and not is_new:
        next_offset = known.epoch
    records: list[Any] = [
        register_broker(
            request.broker_id,
            next_offset,
            request.incarnation_id,
            [Endpoint(each.name, each.host, each.port, each.security_protocol) for each in request.listeners],
            features,
            request.rack,
            sorted(request.log_dirs),
        )
    ]
    if known is not None and is_new:
        is_unclean = request.previous_broker_epoch != known.epoch
        records += leave(image, request.broker_id, policy, is_unclean=is_unclean)
    return Decision(next_offset, records)


def comes_from_the_same_place(image: MetadataImage, request: BrokerRegistrationRequest) -> bool:
    """Whether a new incarnation has the addresses of the one that is registered: two cannot listen there."""
    known = image.brokers.get(request.broker_id)
    return known is not None and {(each.listener, each.host, each.port) for each in known.endpoints} == {
        (each.name, each.host, each.port) for each in request.listeners
    }


def _check_directories(request: BrokerRegistrationRequest) -> None:
    ids = request.log_dirs
    if not ids:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "No directories specified in request")
    if any(int.from_bytes(each, "big") < RESERVED_DIRECTORY_ID_MAX for each in ids):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Reserved directory ID in request")
    if len(set(ids)) != len(ids):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate directory ID in request")


def _ranges(request: BrokerRegistrationRequest | ControllerRegistrationRequest) -> dict[str, FeatureRange]:
    return {
        each.name: FeatureRange(each.min_supported_version, each.max_supported_version) for each in request.features
    }


def _check_features(image: MetadataImage, ranges: Mapping[str, FeatureRange]) -> None:
    for name, level in image.features.items():
        supported = ranges.get(name, FeatureRange(0, 0))
        if level not in supported:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. The"
                f" broker wants a version between {supported.low} and {supported.high}, inclusive.",
            )


def decide_register_controller(image: MetadataImage, request: ControllerRegistrationRequest) -> Decision[None]:
    endpoints = [Endpoint(each.name, each.host, each.port, each.security_protocol) for each in request.listeners]
    features = _ranges(request)
    return Decision(None, [register_controller(request.controller_id, request.incarnation_id, endpoints, features)])


def check_broker_epoch(image: MetadataImage, node_id: int, epoch: int) -> None:
    """Old incarnations have no say (KIP-380)."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {node_id}")
    if broker.epoch != epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
        )


def decide_heartbeat(
    image: MetadataImage,
    request: BrokerHeartbeatRequest,
    session: Session,
    sessions: BrokerSessions,
    policy: PartitionPolicy,
    next_offset: int,
    followed: Callable[[int], int],
) -> Decision[BrokerHeartbeatResponse]:
    """Fenced until it has seen its own registration; in controlled shutdown until others lead what it led."""
    from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse

    broker = image.brokers[request.broker_id]
    node_id = broker.node_id
    is_caught_up = request.current_metadata_offset >= broker.epoch
    answer = BrokerHeartbeatResponse(is_caught_up=is_caught_up, is_fenced=broker.fenced)
    if request.want_shut_down:
        if broker.fenced:
            answer.should_shut_down = True
            return Decision(answer)
        if not broker.in_controlled_shutdown:
            records = begin_shutdown(image, node_id, policy)
            session.shutdown_offset = next_offset + len(records) - 1
            return Decision(answer, records)
        leads = any(partition.leader == node_id for topic in image.topics.values() for partition in topic.partitions)
        seen_by_all = sessions.lowest_offset(node_id, followed) >= (session.shutdown_offset or 0)
        if leads or not seen_by_all:
            return Decision(answer)
        answer.should_shut_down = True
        return Decision(answer, fence(image, node_id, policy))
    offline = set(request.offline_log_dirs) & set(broker.log_directories)
    if offline and len(offline) < len(broker.log_directories):
        return Decision(answer, lose_directories(image, node_id, offline, policy))
    if broker.fenced and not request.want_fence and is_caught_up:
        answer.is_fenced = False
        return Decision(answer, unfence(image, node_id, policy))
    return Decision(answer)


def decide_unregister_broker(image: MetadataImage, node_id: int, policy: PartitionPolicy) -> Decision[None]:
    """For good: its replicas stay assigned, they are offline."""
    from moldau.protocol.messages.metadata_records.unregister_broker_record import UnregisterBrokerRecord

    broker = image.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered")
    records: list[Any] = list(leave(image, node_id, policy))
    records.append(UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker.epoch))
    return Decision(None, records)
