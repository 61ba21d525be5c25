"""The ground: schema, tables, runs, findings, errors, sources."""
