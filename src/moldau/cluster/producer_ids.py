"""Blocks of producer ids: handed out through the metadata log, so that no id is ever given twice."""

from __future__ import annotations

from moldau.cluster.decision import Decision
from moldau.cluster.image import MetadataImage
from moldau.protocol.messages.metadata_records.producer_ids_record import ProducerIdsRecord

BLOCK_IDS = 1000


def decide_allocate_producer_ids(image: MetadataImage, node_id: int) -> Decision[range]:
    """The next block, for one broker."""
    first = image.next_producer_id
    broker = image.brokers[node_id]
    record = ProducerIdsRecord(broker_id=node_id, broker_epoch=broker.epoch, next_producer_id=first + BLOCK_IDS)
    return Decision(range(first, first + BLOCK_IDS), [record])
