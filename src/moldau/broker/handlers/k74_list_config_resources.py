"""ListConfigResources (key 74), versions 0 and 1: names of resources that can be configured.

Version 0 lists client-metrics subscriptions only; version 1 takes types, an empty list meaning all (KIP-1142).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.cluster import ConfigKind
from moldau.kernel import ErrorCode
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse

_LISTABLE = (
    ConfigKind.TOPIC,
    ConfigKind.BROKER,
    ConfigKind.BROKER_LOGGER,
    ConfigKind.CLIENT_METRICS,
    ConfigKind.GROUP,
)


async def handle(request: ListConfigResourcesRequest, context: Context) -> ListConfigResourcesResponse:
    image = context.node.image
    kinds = tuple(request.resource_types) if context.version >= 1 else (ConfigKind.CLIENT_METRICS,)
    if any(kind not in _LISTABLE for kind in kinds):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources = []
    for kind in dict.fromkeys(kinds or _LISTABLE):
        if kind == ConfigKind.TOPIC:
            names = sorted(image.topics)
        elif kind in (ConfigKind.BROKER, ConfigKind.BROKER_LOGGER):
            names = [str(node_id) for node_id in sorted(image.brokers)]
        else:
            names = sorted(resource.name for resource in image.configs if resource.kind == kind)
        resources += [ListConfigResourcesResponse.ConfigResource(name, kind) for name in names]
    return ListConfigResourcesResponse(config_resources=resources)
