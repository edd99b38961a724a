"""The report: a page, tables in results/README.md, figures for scripts; made from what is stored and nothing else."""
