"""Checkpoints: taken in memory at the end of a step, written behind the training's back, verified before use.

Reading order: `shard` (tensors as bytes), `manifest` (what makes a checkpoint whole), `snapshot` (what is in it),
`writer` (how it gets to the disk), `interval` (when), `coordinator` (who decides), `resume` (the way back).
"""
