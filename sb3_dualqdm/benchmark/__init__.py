"""Benchmarks: suites of runs as data, run through rl_zoo3, aggregated with rliable, plotted as in the paper."""
