"""DeleteTopics (key 20), versions 1 to 6: by name, and from version 6 by name or id (trap 10).

The topics are gone from metadata when the answer leaves; their files are renamed then and removed in the background.
`delete.topic.enable` off answers TOPIC_DELETION_DISABLED. Version 5 adds error messages.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.cluster import decide_delete_topics
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse


async def handle(request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse:
    enabled = context.node.settings.delete_topics
    return await context.node.controller.change(
        lambda image: decide_delete_topics(image, request, context.version, deletion_enabled=enabled)
    )
