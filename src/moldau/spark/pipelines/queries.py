"""A query as a pipeline has it: a name, the rows, and where they go. Nothing runs until the pipeline starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pyspark.sql import DataFrame

from moldau.client import ClusterClient, admin
from moldau.kernel import ErrorCode, KafkaError
from moldau.spark import clients
from moldau.spark.exactly_once_batches import foreach_batch
from moldau.spark.pipelines.errors import PipelineError

OutputMode = Literal["append", "update"]
WriteBatch = Callable[[DataFrame, int], None]
COMPACTED: Mapping[str, str] = {"cleanup.policy": "compact"}


class Sink(Protocol):
    """Where a query's batches go, exactly once."""

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        """Prepare the place; `query` names it across restarts."""
        ...


@dataclass(frozen=True, slots=True)
class TopicSink:
    """A topic, which is made when it is not there."""

    topic: str
    partitions: int = -1  # the broker's default
    configs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        clients.run(bootstrap, self._create)
        given = {"kafka.bootstrap.servers": bootstrap, "topic": self.topic, "transactionalId": query}
        return foreach_batch(given | dict(self.options))

    async def _create(self, client: ClusterClient) -> None:
        try:
            await admin.create_topics(client, self.topic, partitions=self.partitions, configs=self.configs)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            await self._check_compacted(client)

    async def _check_compacted(self, client: ClusterClient) -> None:
        if "compact" not in self.configs.get("cleanup.policy", ""):
            return
        found = await admin.describe_configs(client, admin.ResourceType.TOPIC, self.topic, ["cleanup.policy"])
        policy = found[0].value or ""
        if "compact" not in policy:
            raise PipelineError(
                f"topic {self.topic} exists with cleanup.policy={policy} and would lose rows of the table: "
                f"`moldau config set topic/{self.topic} cleanup.policy=compact`, or choose another topic"
            )


@dataclass(frozen=True, slots=True)
class FunctionSink:
    """Any function for `foreachBatch`; exactly once is its own affair."""

    write: WriteBatch

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        return self.write


@dataclass(frozen=True, slots=True)
class Query:
    """Rows on their way somewhere."""

    name: str
    rows: DataFrame
    sink: Sink
    output_mode: OutputMode = "append"
