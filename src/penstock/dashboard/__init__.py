"""The face of jobs: pages, JSON, REST as Flink's client speaks it, metrics. A process of its own: no request can hold up a batch.

Enter: HTTP requests. Leave: what `view` sees, and requests to running jobs through their storage. Beside the driver, or anywhere.
"""
