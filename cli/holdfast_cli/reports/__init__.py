"""What a run was like: a file for people, and two runs side by side."""
