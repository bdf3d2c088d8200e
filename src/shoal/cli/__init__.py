"""The command line: one file per command, each importing its part when called."""
