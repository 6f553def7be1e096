"""Step times in profiler traces, logs and exports of trackers. Each file becomes a row of a table of jobs."""
