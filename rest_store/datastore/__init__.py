"""The files of a datastore and exact queries over them. Needs only numpy."""
