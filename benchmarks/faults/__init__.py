"""The campaign against faults: kills around every write, mutated files, odd command lines, many clients."""
