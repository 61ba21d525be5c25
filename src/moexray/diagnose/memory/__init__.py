"""Memory: out-of-memory records, allocator statistics, snapshots, the host."""

__all__: list[str] = []
