"""The cluster client and the verbs of administration, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from moldau.client import ClusterClient, ConnectionFailed, Producer, admin
from moldau.client.admin import Alteration, AlterOperation, ConfigSource, ResourceType
from moldau.client.metadata import TopicInfo, merge_topic, with_leader
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.registry import ApiKey
from tests.client.conftest import Server
from tests.client.proxy import Cut, Proxy
from tests.oracle import free_port


def test_one_reachable_bootstrap_address_is_enough(server: Server) -> None:
    async def test() -> None:
        bootstrap = f"127.0.0.1:{free_port()},{server.bootstrap}"
        async with ClusterClient(bootstrap) as client:
            metadata = await client.metadata([])
            assert len(metadata.nodes) == 1
            assert metadata.cluster_id
            (node,) = metadata.nodes
            response = await client.to_node(node, MetadataRequest([]))
            assert response.cluster_id == metadata.cluster_id
            assert (await client.to_any(MetadataRequest([]))).cluster_id == metadata.cluster_id

    asyncio.run(test())


def test_topics_are_created_listed_described_grown_and_deleted(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        name = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            (checked,) = await admin.create_topics(client, name, partitions=2, validate_only=True)
            assert checked.partition_count == 2
            assert name not in [topic.name for topic in await admin.list_topics(client)]

            (made,) = await admin.create_topics(client, name, partitions=2, configs={"retention.ms": "1234567"})
            assert (made.name, made.partition_count, made.replication_factor) == (name, 2, 1)
            assert made.configs["retention.ms"] == "1234567"
            (topic,) = await admin.describe_topics(client, [name])
            assert [partition.partition for partition in topic.partitions] == [0, 1]
            assert {partition.leader for partition in topic.partitions} == set(client.nodes)
            listed = {one.name: one for one in await admin.list_topics(client)}
            assert (listed[name].partition_count, listed[name].topic_id) == (2, made.topic_id)

            with pytest.raises(KafkaError, match=name) as refused:
                await admin.create_topics(client, name)
            assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS

            await admin.create_partitions(client, name, 3)
            async with asyncio.timeout(10):
                while len((await admin.describe_topics(client, [name]))[0].partitions) != 3:
                    await asyncio.sleep(0.02)
            with pytest.raises(KafkaError) as refused:
                await admin.create_partitions(client, name, 1)
            assert refused.value.code is ErrorCode.INVALID_PARTITIONS

            await admin.delete_topics(client, name)
            with pytest.raises(KafkaError, match="it does not exist") as refused:
                async with asyncio.timeout(10):
                    while True:  # Kafka's brokers follow the controller by some milliseconds
                        await admin.describe_topics(client, [name])
                        await asyncio.sleep(0.02)
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(test())


def test_a_topic_can_be_placed_by_hand_and_bad_placement_is_refused(
    server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        async with ClusterClient(server.bootstrap) as client:
            (node,) = (await client.metadata([])).nodes
            name = new_topic()
            await admin.create_topics(client, name, assignments={0: [node], 1: [node]})
            (topic,) = await admin.describe_topics(client, [name])
            assert [partition.replicas for partition in topic.partitions] == [(node,), (node,)]
            with pytest.raises(KafkaError) as refused:
                await admin.create_topics(client, new_topic(), replication_factor=3)
            assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR

    asyncio.run(test())


def test_configs_are_described_and_altered(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        name = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, name)
            await admin.describe_topics(client, [name])

            async def entry(key: str) -> admin.ConfigEntry:
                (found,) = await admin.describe_configs(client, ResourceType.TOPIC, name, [key])
                return found

            assert (await entry("retention.ms")).source is ConfigSource.DEFAULT
            await admin.incremental_alter_configs(
                client, ResourceType.TOPIC, name, [Alteration("retention.ms", "86400000")]
            )
            async with asyncio.timeout(10):
                while (await entry("retention.ms")).source is not ConfigSource.DYNAMIC_TOPIC:
                    await asyncio.sleep(0.02)
            assert (await entry("retention.ms")).value == "86400000"
            await admin.incremental_alter_configs(
                client, ResourceType.TOPIC, name, [Alteration("retention.ms", operation=AlterOperation.DELETE)]
            )
            with pytest.raises(KafkaError, match=name) as refused:
                await admin.incremental_alter_configs(
                    client, ResourceType.TOPIC, name, [Alteration("retention.ms", "soon")]
                )
            assert refused.value.code is ErrorCode.INVALID_CONFIG

            everything = await admin.describe_configs(client, ResourceType.TOPIC, name, include_documentation=True)
            assert {"cleanup.policy", "segment.bytes", "max.message.bytes"} <= {one.name for one in everything}
            assert all(one.documentation for one in everything)
            (node,) = client.nodes
            broker = await admin.describe_configs(client, ResourceType.BROKER, str(node))
            assert {"log.dirs", "num.partitions"} <= {one.name for one in broker}
            with pytest.raises(KafkaError, match="is not a broker id"):
                await admin.describe_configs(client, ResourceType.BROKER, "one")

    asyncio.run(test())


def test_offsets_are_listed_by_place_and_time_and_records_deleted(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        name = new_topic()
        where = TopicPartition(name, 0)
        async with ClusterClient(server.bootstrap) as client, Producer(client) as producer:
            await admin.create_topics(client, name, partitions=1)
            for second in range(10):
                await producer.send(name, b"v", timestamp_ms=1_700_000_000_000 + second * 1000)
            await producer.flush()

            async def offset(timestamp: int) -> int:
                return (await admin.list_offsets(client, {where: timestamp}))[where].offset

            assert (await offset(admin.EARLIEST), await offset(admin.LATEST)) == (0, 10)
            assert await offset(1_700_000_003_500) == 4
            assert await offset(1_700_000_009_001) == -1
            assert await admin.delete_records(client, {where: 6}) == {where: 6}
            assert await offset(admin.EARLIEST) == 6
            assert await admin.delete_records(client, {where: -1}) == {where: 10}
            with pytest.raises(KafkaError) as refused:
                await admin.delete_records(client, {where: 99})
            assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            with pytest.raises(KafkaError, match="no partition 7"):
                await admin.list_offsets(client, {TopicPartition(name, 7): admin.LATEST})

    asyncio.run(test())


def test_the_cluster_its_features_disks_and_quorum_are_described(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        name = new_topic()
        async with ClusterClient(server.bootstrap) as client, Producer(client) as producer:
            await (await producer.send(name, bytes(100)))
            cluster = await admin.describe_cluster(client)
            assert (cluster.cluster_id, len(cluster.nodes)) == (client.cluster_id, 1)
            assert not cluster.fenced
            features = {feature.name: feature for feature in await admin.describe_features(client)}
            level = features["metadata.version"]
            assert level.supported_min <= level.finalized <= level.supported_max
            (log_dir,) = await admin.describe_log_dirs(client, topics=[name])
            assert log_dir.error is ErrorCode.NONE
            assert [replica.partition.topic for replica in log_dir.replicas] == [name]
            assert log_dir.replicas[0].size_bytes > 100
            quorum = await admin.describe_quorum(client)
            assert quorum.leader_id == quorum.voters[0].id
            assert quorum.high_watermark > 0
            await admin.update_features(client, {"metadata.version": level.finalized}, validate_only=True)
            with pytest.raises(KafkaError, match=r"metadata\.version"):
                await admin.update_features(client, {"metadata.version": 9999}, validate_only=True)

    asyncio.run(test())


def test_lost_connections_are_opened_again_and_reads_repeated(server: Server) -> None:
    async def test() -> None:
        async with Proxy(server.bootstrap) as proxy, ClusterClient(proxy.bootstrap) as client:
            await client.metadata([])
            for _ in range(3):
                proxy.cut_all()
                assert (await asyncio.wait_for(admin.describe_cluster(client), 10)).nodes
            assert proxy.connections >= 4

    asyncio.run(test())


def test_a_change_that_may_have_happened_is_not_repeated(server: Server, new_topic: Callable[[], str]) -> None:
    def cut_the_answer(api_key: int, message: object) -> None:
        if api_key == ApiKey.CREATE_TOPICS:
            raise Cut

    async def test() -> None:
        name = new_topic()
        async with (
            Proxy(server.bootstrap, on_response=cut_the_answer) as proxy,
            ClusterClient(proxy.bootstrap) as client,
        ):
            with pytest.raises(ConnectionFailed):
                await admin.create_topics(client, name)
            assert (await admin.describe_topics(client, [name]))[0].name == name

    asyncio.run(test())


def test_older_news_does_not_replace_a_newer_leader() -> None:
    from moldau.client import PartitionInfo

    def topic(leader: int, epoch: int, topic_id: bytes = b"a" * 16) -> TopicInfo:
        return TopicInfo("t", topic_id, False, (PartitionInfo("t", 0, leader, epoch, (1, 2), (1, 2), ()),))

    assert merge_topic(topic(2, 5), topic(1, 4)).partitions[0].leader == 2
    assert merge_topic(topic(2, 5), topic(1, 6)).partitions[0].leader == 1
    assert merge_topic(topic(2, 5), topic(1, 0, b"b" * 16)).partitions[0].leader == 1  # made anew
    assert with_leader(topic(2, 5), 0, 1, 6).partitions[0].leader == 1
    assert with_leader(topic(2, 5), 0, 1, 5).partitions[0].leader == 2
