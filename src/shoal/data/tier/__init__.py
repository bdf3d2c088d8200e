"""Data servers: processes that prepare batches for the workers, from the closed format up to who is asked for what.

Reading order: `batch_format` (bytes), `preparing` (a batch is a function of its indices), `messages`, `batch_server`
(one process), `server_links` (a worker's connections), `fetching` (which server is asked, and what if it is silent).
"""
