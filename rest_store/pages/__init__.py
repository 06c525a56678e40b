"""The frame of all pages of HTML: one file that needs no network, and one style."""
