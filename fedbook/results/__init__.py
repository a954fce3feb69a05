"""Running and storing cells: result files with checksums, batches, provenance."""
