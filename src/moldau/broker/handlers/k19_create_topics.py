"""CreateTopics (key 19), versions 2 to 7.

Decided by the controller (`cluster.topics`): names and their collisions, counts and factors (-1 is the broker's
default), manual assignments, configs, validate only. When the answer leaves, the topics can be used: their logs are
open on this broker. Versions: 5 returns counts and configs (KIP-525), 7 the topic's id.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse


async def handle(request: CreateTopicsRequest, context: Context) -> CreateTopicsResponse:
    return await context.node.create_topics(request)
