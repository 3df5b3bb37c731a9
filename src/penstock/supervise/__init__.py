"""Staying up: a small parent starts the program of a job, and starts it again when it ends without being meant to.

In: a command, signals, and what the program says of itself over a socket. Out: the program, started again or not, and the story of that in
the journal. The decisions are pure. Called by the command line; the program's side is called by the spark package. Driver; no Spark here.
"""
