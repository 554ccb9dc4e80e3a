"""What Holdfast needs of the operating system and of servers: files, processes, threads, sockets, HTTP and Redis."""
