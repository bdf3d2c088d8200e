"""A Ray cluster of three nodes in a network namespace of its own: `unshare -n python ray_cluster.py`.

Prints `address A`; clients (ray://) find it at port 10001. Then obeys lines on standard input: `remove` the last node,
`add` one, or ends with the input.
"""

import subprocess
import sys

from ray.cluster_utils import Cluster

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
# The head has room for nobody: each of the other two nodes then runs one machine, and removing one loses a worker.
cluster = Cluster(
    initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": 10001}
)
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
cluster.wait_for_nodes()
sys.stdout.write(f"address {cluster.address}\n")
sys.stdout.flush()
for line in sys.stdin:
    if line.strip() == "remove":
        cluster.remove_node(nodes.pop(), allow_graceful=False)
    else:
        nodes.append(cluster.add_node(num_cpus=1))
    sys.stdout.write(f"{line.strip()} done\n")
    sys.stdout.flush()
cluster.shutdown()
