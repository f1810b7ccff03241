"""Batches on devices: chains, their rows and places, reports, sharding, and backends."""
