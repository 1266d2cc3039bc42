"""UpdateFeatures (key 57), versions 0 to 2: raise or lower the levels of features, all of the request or nothing.

Versions: 0 allows downgrades by a flag, 1 by upgrade types and with validate only; 2 answers with one error (KIP-1022).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.cluster import MIN_IN_SYNC, decide_update_features
from moldau.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


async def handle(request: UpdateFeaturesRequest, context: Context) -> UpdateFeaturesResponse:
    node = context.node
    min_in_sync = node.settings.integer(MIN_IN_SYNC)
    response: UpdateFeaturesResponse = await node.controller.change(
        lambda image: decide_update_features(image, request, context.version, node.node_id, min_in_sync)
    )
    return response
