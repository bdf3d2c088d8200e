"""`--data-servers`: how many processes prepare batches beside the workers, or where on other machines some do."""

from typing import TYPE_CHECKING

from shoal.cli.options import RunOptions

if TYPE_CHECKING:
    from shoal.launch.data_seats import RemoteDataServer

MOST_DATA_SERVERS = 256


def read_data_servers(options: RunOptions) -> "tuple[int, tuple[RemoteDataServer, ...]]":
    """Return how many data servers the launcher starts, and those that others have started."""
    from shoal.core.errors import UsageError

    said = options.data_servers
    if said is None:
        return 0, ()
    check_tier(options, said)
    count, remote = 0, []
    for word in said.split(","):
        word = word.strip()
        if word.isascii() and word.isdecimal():
            count += int(word)
        elif "=" in word and ":" in word:
            remote.append(read_remote(word, options))
        else:
            raise UsageError(
                f"--data-servers {said!r}: {word!r} is neither a number of processes nor HOST:PORT=KEYFILE; write "
                "--data-servers 2, or --data-servers 10.0.0.2:7800=data.key"
            )
    if not 1 <= count + len(remote) <= MOST_DATA_SERVERS:
        raise UsageError(f"--data-servers {said}: give 1 to {MOST_DATA_SERVERS} of them, or leave the option out")
    return count, tuple(remote)


def check_tier(options: RunOptions, said: str) -> None:
    """Raise UsageError where not every worker could reach the servers."""
    from shoal.core.errors import UsageError

    if options.engine is not None:
        raise UsageError(
            f"--data-servers {said} with --on: workers of the other machines could not reach them; start some there "
            "with shoal data, or use DataLoader(num_workers=…)"
        )
    if options.lab is not None and "=" in said:
        raise UsageError(f"--data-servers {said} with --lab: nothing leaves a lab; write --data-servers 2")


def read_remote(word: str, options: RunOptions) -> "RemoteDataServer":
    """`HOST:PORT=KEYFILE`, where the file is an invitation that `shoal keys invite` made of the servers' key."""
    from pathlib import Path

    from shoal.cli.join import credential
    from shoal.launch.address import parse
    from shoal.launch.data_seats import RemoteDataServer
    from shoal.transport.keys import KeyFile

    where, _, file = word.partition("=")
    host, port = parse(where, "--data-servers")
    way_out = "make it with shoal keys invite where shoal data runs, and copy it here"
    keys = credential(KeyFile.read(Path(file), way_out), None, file)
    return RemoteDataServer(f"tcp://{host}:{port}", keys)
