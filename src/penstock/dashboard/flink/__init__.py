"""REST as Flink's own client speaks it, so that `flink list`, `flink savepoint`, scripts and exporters work with a job of Penstock's.

Enter: HTTP requests. Leave: what `view` sees, in Flink's shapes, and requests to running jobs. Called by the dashboard's server.
"""

from penstock.dashboard.flink.routes import flink_routes

__all__ = ["flink_routes"]
