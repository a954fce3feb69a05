"""The rows of a run, one per client: where they are stored, and how they get to the round and back."""
