"""The control plane's world on a virtual clock: nodes, cores, elastic executors, shards, moves and failures.

It gives samples, takes plans, and keeps the true latency of every row, which no engine could afford to.
"""
