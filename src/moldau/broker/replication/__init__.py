"""The shell of replication: fetchers that copy what other brokers lead, and proposals of our own leaders.

One connection and one loop per leader and fetcher number (`num.replica.fetchers`). What is fetched is appended by
`Partition`, byte for byte; what follows from it is decided by `moldau.cluster`'s machines.
"""

from moldau.broker.replication.replication import Replication

__all__ = ["Replication"]
