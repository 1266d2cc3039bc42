"""ElectLeaders (key 43), versions 0 to 2: preferred (0) or unclean (1) elections; null means every partition.

Answers ELECTION_NOT_NEEDED where the right leader already leads; a request for every partition leaves those out, but
names each topic.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.cluster import decide_elect_leaders
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse


async def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
    node = context.node
    return await node.controller.change(lambda image: decide_elect_leaders(image, request, node.active.policy(image)))
