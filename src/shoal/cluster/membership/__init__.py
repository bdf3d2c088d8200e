"""Who is a member of a run: views, the coordinator that installs them, and each worker's side of it.

Pure state machines over messages and a clock that is handed in: the simulator (`shoal.testing.simulator`) and real
processes run the same code. Reading order: `view`, `messages`, `member`, `coordinator`, `log`.
"""
