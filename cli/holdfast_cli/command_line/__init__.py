"""How a command is declared, and how its help is printed."""
