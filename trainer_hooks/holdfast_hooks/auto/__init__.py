"""Attaches the hooks without a line in the script: when the process group is made, and by what torch shows of steps."""
