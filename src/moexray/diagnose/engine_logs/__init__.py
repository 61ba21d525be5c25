"""What an engine's log tells beside series and benchmarks: compilation, balancing, backends."""

__all__: list[str] = []
