"""The command line: one module per verb, each imported only when the verb is used."""
