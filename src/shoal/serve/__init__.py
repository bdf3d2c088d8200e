"""Serving: trained models answer requests over HTTP. `shoal serve` is the command; see docs/serve.md.

The parts have the names that TensorFlow Serving gave them, one file each; every arrow is a seam:

    source ──loaders──▶ manager ──loads──▶ servable versions in a stream        model: several servables as one
                           ▲                       ▲
                           │                       │ predict, many requests at once
    HTTP ──requests──▶   core  ──────────────▶  batcher
"""
