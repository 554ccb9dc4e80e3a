"""What every view shows of a run: the console, `holdfast status` and `top`, metrics and messages draw from here."""
