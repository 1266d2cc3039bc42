"""CreatePartitions (key 37), versions 0 to 3: grow topics.

Fewer partitions than now is refused, as many too. Existing records stay where they are: keys hash differently from now
on. Decided by the controller; the new partitions can be used when the answer leaves.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse


async def handle(request: CreatePartitionsRequest, context: Context) -> CreatePartitionsResponse:
    node = context.node
    return await node.controller.change(lambda image: node.topic_decider.create_partitions(image, request))
