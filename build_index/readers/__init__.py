"""How corpora are read: one module for each kind of file, and what tells them apart."""
