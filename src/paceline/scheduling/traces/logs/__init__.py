"""Readers of logs and queues of clusters, one file for each program or published trace."""
