"""What is kept on disk, and the hashes by which it is known again.

All hashes are `identity.short`: 16 hexadecimal digits of SHA-256.  They answer four questions.

- Is this the same value?  `identity.digest`: numbers and texts as they are, arrays with all entries, functions and
  classes of the user's by what Python compiled them to, those of libraries by their names.
- Is this the same federation?  `identity()` of an objective names its parts (data, clients, model, start, ...), each a
  `digest`; `fingerprint()` is one hash of them.
- Is this the same run?  `Run.identity` adds the method, the settings and the probes.  A checkpoint and a run of a sweep
  go on only where these are equal; a cell of the book hashes its specification instead (`fedbook.results.cells`).
- Was it computed by the same code?  `sources`: a hash of the source that can change a result, wherever in the package
  it stands.  A checkpoint of other code is refused, a cell of other code counts as older.

`checkpoint` writes files that appear whole or not at all, `archives` reads them without executing anything.
"""
