"""How attention of other libraries is read, replaced and initialised: a family of classes per file."""
