"""The third link: a User-Mode Linux whose kernel has netem runs this same program, where the machine's own has none."""
