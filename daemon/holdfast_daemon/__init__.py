"""The coordinator: a pure core that decides and a shell that carries out."""
