"""`shoal watch`: a page in the browser that reads the record, its JSON API, and the form that launches a run."""
