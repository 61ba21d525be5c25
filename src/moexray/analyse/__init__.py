"""Tables to metrics tables, one file a subject; no judgement, no files."""
