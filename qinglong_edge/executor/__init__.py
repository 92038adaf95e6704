"""Touch the machine: clocks, processes, logs."""
