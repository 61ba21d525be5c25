"""Shapes of parsed documents (JSON, CSV, pickle), one file a subject."""
