"""The web server that shows jobs: pages, JSON, Flink's REST interface, metrics. It runs in its own process, so no request delays a batch.

In: HTTP requests. Out: what `status` reads from storage, and requests to running jobs through their storage.
"""
