"""Links between workers of different hosts: encrypted sockets, reliable chunks, collectives over a mesh of peers."""
