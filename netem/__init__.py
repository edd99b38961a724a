"""The laboratory: hosts as network namespaces on one machine, a long link between them, and what is measured there."""
