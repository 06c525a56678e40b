"""What all pages of HTML share: one file that needs no network, and one style."""
