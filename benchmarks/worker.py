"""A worker process of the benchmark, which starts it: python benchmarks/worker.py WORK."""

from speed.pieces import main

if __name__ == "__main__":
    main()
