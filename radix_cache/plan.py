"""TODO: attention plan (contract in docs/architecture.md)."""
