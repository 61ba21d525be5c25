"""The live page: one HTML document, a stream of events, and the report of each diagnosis."""

__all__: list[str] = []
