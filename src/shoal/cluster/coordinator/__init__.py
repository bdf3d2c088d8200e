"""The coordinator as a process: the pure state machine of `membership` with a socket, a log and a launcher.

    launcher ── fork ──> coordinator            `handle`: start, tell of deaths, stop, start again
       │  <── socketpair: Gone, Stop / Ready, Lost, Installed ──>   `channel`
    agents ── DEALER ──> ROUTER ── register ── Coordinator ── Write ──> `wal`, then Tell

Reading order: `process`, `door`, `register`, `wal`, `channel`, `handle`.
"""
