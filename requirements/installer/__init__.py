"""The set-up: looks at the machine, then installs; standard library only."""
