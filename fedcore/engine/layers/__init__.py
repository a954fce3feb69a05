"""What the engine knows of layers: a class a layer (`rule.Rule`), and the table of them (`table.RULES`)."""
