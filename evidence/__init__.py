"""One question, one folder: the script that makes its records, the records, and the command (README.md)."""
