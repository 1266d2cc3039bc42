"""ApiVersions (key 18), versions 0 to 4: what this broker speaks, and which features the cluster has agreed on.

The first request on every connection, so it must work whatever the client is: a version that we do not know is answered
with version 0, error UNSUPPORTED_VERSION and our own range (trap 1, KIP-511); the answer's header is always version 0
(trap 2, in `dispatch`). From version 3 on the client names its software, which must look like a name (trap 4). A
feature whose lowest level is 0 is hidden before version 4, because older clients choke on it (KAFKA-17011, trap 5).
"""

from __future__ import annotations

import re

from moldau.broker.api_table import SERVED, advertised_range
from moldau.broker.dispatch import Context
from moldau.cluster import SUPPORTED_FEATURES, advertised_levels
from moldau.kernel import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(request: ApiVersionsRequest | None, context: Context) -> ApiVersionsResponse:
    if request is None:
        served = SERVED[18]
        return ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[ApiVersionsResponse.ApiVersion(18, served.version_min, served.version_max)],
        )
    version = context.version
    if version >= 3:
        software = request.client_software_name, request.client_software_version
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.session = software
    node = context.node
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(key, *advertised_range(served))
            for key, served in sorted(context.dispatcher.served.items())
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name, supported.low, supported.high)
            for name, supported in SUPPORTED_FEATURES.items()
            if supported.high > 0 and (version >= 4 or supported.low > 0)
        ],
        finalized_features_epoch=node.image.offset,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name, level, level)
            for name, level in advertised_levels(node.image, node.kraft_version).items()
        ],
    )
