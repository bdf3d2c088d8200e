"""Workers and how they find each other: groups, the memory of one host, launchers."""
