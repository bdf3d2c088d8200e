"""Pushes and pulls of two workers through one server: a turn of one contestant of `benchmarks/servers.py`.

    python benchmarks/servers_exchange.py rpc|ray --numbers N --steps S       torch RPC; a Ray actor
    shoal run -w 2 --plan "server, async" benchmarks/servers_exchange.py shoal --numbers N --steps S

A step is a push of N numbers, which the server adds, and a pull of all values. What workers push is there already.
Printed: seconds of every step of worker 0, as JSON.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable

import torch

RATE = 0.01


def timed(step: Callable[[], object], steps: int) -> list[float]:
    """Seconds of each step; the first three are not counted."""
    moments = []
    for _ in range(steps + 3):
        step()
        moments.append(time.perf_counter())
    return [b - a for a, b in itertools.pairwise(moments[2:])]


def by_shoal(numbers: int, steps: int) -> list[float]:
    import shoal

    run = shoal.start()
    model = torch.nn.ParameterList([torch.zeros(numbers)])
    model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=RATE))
    model[0].grad = torch.ones(numbers)
    found = timed(optimizer.step, steps)
    return found if run.is_main else []


class RpcServer:
    """Of torch RPC: the values live in the process that was named server."""

    values: torch.Tensor


def rpc_open(numbers: int) -> None:
    RpcServer.values = torch.zeros(numbers)


def rpc_push(update: torch.Tensor) -> None:
    RpcServer.values.add_(update, alpha=-RATE)


def rpc_pull() -> torch.Tensor:
    return RpcServer.values


def rpc_worker(rank: int, port: int, numbers: int, steps: int, told: "multiprocessing.Queue[list[float]]") -> None:
    from torch.distributed import rpc

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    rpc.init_rpc(f"worker{rank}" if rank else "server", rank=rank, world_size=3)
    if rank == 1:
        rpc.rpc_sync("server", rpc_open, (numbers,))
    values, update = torch.zeros(numbers), torch.ones(numbers)

    def step() -> None:
        rpc.rpc_sync("server", rpc_push, (update,))
        values.copy_(rpc.rpc_sync("server", rpc_pull))

    if rank:
        time.sleep(1.0)  # until the values are there
        found = timed(step, steps)
        if rank == 1:
            told.put(found)
    rpc.shutdown()


def by_rpc(numbers: int, steps: int) -> list[float]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    processes = [context.Process(target=rpc_worker, args=(rank, port, numbers, steps, told)) for rank in range(3)]
    for process in processes:
        process.start()
    seconds = told.get(timeout=300)
    for process in processes:
        process.join()
    return seconds


def by_ray(numbers: int, steps: int) -> list[float]:
    import numpy
    import ray

    class ActorServer:
        def __init__(self) -> None:
            self.values = numpy.zeros(numbers, numpy.float32)

        def push(self, update: numpy.ndarray) -> None:
            self.values -= RATE * update

        def pull(self) -> numpy.ndarray:
            return self.values

    class ActorWorker:
        def train(self, server: object) -> list[float]:
            values, update = numpy.zeros(numbers, numpy.float32), numpy.ones(numbers, numpy.float32)

            def step() -> None:
                ray.get(server.push.remote(update))
                values[:] = ray.get(server.pull.remote())

            return timed(step, steps)

    ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    server = ray.remote(ActorServer).remote()
    workers = [ray.remote(ActorWorker).remote() for _ in range(2)]
    found = ray.get([worker.train.remote(server) for worker in workers], timeout=300)
    ray.shutdown()
    return found[0]


BY = {"shoal": by_shoal, "rpc": by_rpc, "ray": by_ray}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("by", choices=BY)
    parser.add_argument("--numbers", type=int, default=6_250_000, help="of 4 bytes: 25 MB")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if found := BY[args.by](args.numbers, args.steps):
        print(json.dumps({"seconds": found}), flush=True)


if __name__ == "__main__":
    main()
