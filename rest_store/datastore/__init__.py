"""Files and exact queries: what a datastore is on disk, and what it answers. Needs numpy alone."""
