"""Clusters of real nodes under faults; `simulate_cluster(seed)` is a run."""

from moldau.testing.simulation.clusters.world import ClusterWorld, simulate_cluster

__all__ = ["ClusterWorld", "simulate_cluster"]
