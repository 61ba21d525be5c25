"""From a running engine to tables, metrics and traces."""
