"""The trained networks of this repository, converted both ways."""
