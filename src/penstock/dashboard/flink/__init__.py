"""Flink's REST interface, so that `flink list`, `flink savepoint`, scripts and exporters work with jobs of Penstock.

In: HTTP requests. Out: views of jobs in Flink's JSON, and requests to running jobs. Called by the dashboard's server.
"""

from penstock.dashboard.flink.routes import flink_routes

__all__ = ["flink_routes"]
