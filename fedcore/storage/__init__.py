"""Files of runs, and the hashes that say which run a file belongs to.

All hashes are `identity.short`: 16 hexadecimal digits of SHA-256.  They answer four questions.

- Is this the same value?  `identity.digest` hashes numbers and strings as they are, arrays with all entries, functions
  and classes of the user by their compiled code, and functions and classes of libraries by their names.
- Is this the same federation?  `identity()` of an objective has a `digest` of each part (data, clients, model,
  start, ...), and `fingerprint()` is one hash of all parts.
- Is this the same run?  `Run.identity` adds the method, the settings and the probes.  A run continues from a
  checkpoint, and a sweep uses a stored run, only if all are equal; a cell of the book hashes its specification instead
  (`fedbook.results.cells`).
- Was it computed by the same code?  `sources` hashes the source that can change a result, in whichever module it is.
  A checkpoint of other code is refused.  A cell of other code counts as older, unless today's code was confirmed to
  compute it too: a run keeps the hash of the code that computed it, and `fedbook.results.cells.confirm` stores the
  hash of the confirmed code beside the results, in `confirmed.csv`.

`checkpoint` writes files that are complete or do not exist, and `archives` reads them without executing anything.
"""
