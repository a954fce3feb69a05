"""What the engine knows of layers: one class per layer (`rule.Rule`), and the table of them (`table.RULES`)."""
