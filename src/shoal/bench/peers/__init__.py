"""Other ways to train one script on several workers, for comparison: one file per tool."""
