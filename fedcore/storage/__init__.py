"""What is kept on disk: checkpoints, sealed files, the identity of values, the code of a result."""
