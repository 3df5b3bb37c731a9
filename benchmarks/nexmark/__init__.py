"""Nexmark: an auction site's events, and the queries over them as jobs of Penstock, beside plain Spark and DuckDB."""
