"""Pages of trained networks: what their heads do, and where they look on a photograph."""
