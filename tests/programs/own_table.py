"""An own table: a method in this file beside FedAvg, run cell by cell and reported as Markdown."""

import fedcore as fc
from fedbook import Cell, Table, reproduce


class Half(fc.FedAvg):
    def aggregate(self, r, y):
        return {"x": r.x + 0.5 * r.mean(y - r.x)}


FEDERATION = {"source": "digits", "clients": 4, "model": "logistic"}
SPEC = {"study": "simulate", "federation": FEDERATION, "run": {"rounds": 2, "lr": 0.1, "local_steps": 2}}
ROWS = {"FedAvg": ["FedAvg", {}], "Half": ["own_table.py:Half", {}]}
CELLS = [Cell(name, {**SPEC, "method": method}, name, "digits", seeds=2) for name, method in ROWS.items()]
TABLES = [Table("halves", "Half steps of the server", "mine", lambda profile: CELLS, {"quick": "2 rounds"})]

if __name__ == "__main__":
    assert reproduce.main(["halves", "--plain", "--definitions", __file__]) == 0
    assert reproduce.main(["report", "halves", "--definitions", __file__, "--format", "markdown"]) == 0
