"""The rows of a run, one a client: where they are, and how they come to the round and back."""
