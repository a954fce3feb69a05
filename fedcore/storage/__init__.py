"""What is kept on disk: where a result comes from."""
