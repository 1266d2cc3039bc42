"""DescribeCluster (key 60), versions 0 to 2: brokers (endpoint type 1) or, at a controller listener, controllers (2).

Version 1 adds the endpoint type (KIP-919): a broker listener refuses controllers with MISMATCHED_ENDPOINT_TYPE and
types that do not exist with UNSUPPORTED_ENDPOINT_TYPE (trap 37). Version 2 may list fenced brokers.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.handlers.k03_metadata import CLUSTER_OPERATIONS, NOT_ASKED_FOR
from moldau.kernel import ErrorCode
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2


async def handle(request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
    node = context.node
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    if context.dispatcher.is_controller:
        return _controllers(request, context)
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type"
            " CONTROLLER",
        )
    brokers = sorted(node.image.brokers.values(), key=lambda broker: broker.node_id)
    return DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=node.controller_id_for_clients(),
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker.node_id, endpoint.host, endpoint.port, broker.rack, broker.fenced
            )
            for broker in brokers
            if (not broker.fenced or request.include_fenced_brokers)
            and (endpoint := node.listeners.endpoint_for(broker, context)) is not None
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )


def _controllers(request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
    """The other side: a controller's listener knows controllers."""
    if request.endpoint_type != CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type"
            " BROKER",
        )
    node = context.node
    return DescribeClusterResponse(
        endpoint_type=CONTROLLERS,
        cluster_id=node.cluster_id,
        controller_id=node.controller.quorum.leader_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(controller.node_id, endpoint.host, endpoint.port)
            for controller in node.image.controllers.values()
            for endpoint in controller.endpoints
            if endpoint.listener == context.listener
        ],
    )
