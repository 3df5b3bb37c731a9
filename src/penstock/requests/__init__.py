"""Requests to a running job: a checkpoint, a savepoint, a stop, a cancel. They travel through the job's storage, so no port is needed.

`request_files` is the protocol, `request_client` the side that asks, `request_server` the side that answers, also for the program that runs
the job itself. `job_actions` performs the requests.
"""
