"""Benchmarks: programs, not timed tests. Moldau and Apache Kafka take turns in one run, and ratios are printed."""
