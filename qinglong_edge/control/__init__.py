"""Reach a running owner: one line of JSON over a unix socket, the same commands on its side.

`protocol` is the form of a line, `server` and `connection` the owner's side inside its one loop,
`worker` the thread in which commands run, `client` the other side, `address` the socket's place in
the file system, and `owner_record` how a command finds out that somebody listens.
"""
