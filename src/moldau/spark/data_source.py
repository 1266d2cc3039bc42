"""What Spark asks for by the name `moldau`: which reader and which writer belong to the options of a query.

Spark makes this object anew in several Python processes (planning, the query's own, the commit), so it holds nothing
but its options.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from moldau.spark.errors import told_in_one_line
from moldau.spark.options import check_options, wants_headers


class MoldauDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "moldau"

    def schema(self) -> StructType:
        """Asked for when a query is written down, which is when its options are best refused."""
        from moldau.spark.source import topic_schema

        with told_in_one_line():
            check_options(self.options)
        return topic_schema(wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from moldau.spark.source import TopicReader

        return TopicReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from moldau.spark.source import TopicStreamReader

        return TopicStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from moldau.spark.sink import BatchSink
        from moldau.spark.sink_options import sink_options

        return BatchSink(sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from moldau.spark.exactly_once_sink import ExactlyOnceSink
        from moldau.spark.sink import StreamSink
        from moldau.spark.sink_options import sink_options

        options = sink_options(self.options)
        return ExactlyOnceSink(options, schema) if options.exactly_once else StreamSink(options, schema)
