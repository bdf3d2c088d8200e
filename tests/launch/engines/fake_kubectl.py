"""A kubectl whose cluster is this machine: pods of an Indexed Job are local processes. Run as a script, it is both the
command and, with `controller`, what keeps the pods running.

$FAKE_CLUSTER is the folder of its state:  NAME.json (job)  NAME/pod-INDEX-N/{log,key,status.json}
"""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ.get("FAKE_CLUSTER", "/nonexistent"))


def apply() -> None:
    objects = {each["kind"]: each for each in json.load(sys.stdin)["items"]}
    name = objects["Job"]["metadata"]["name"]
    (ROOT / name).mkdir(mode=0o700)
    (ROOT / name / "objects.json").write_text(json.dumps(objects))
    words = [sys.executable, __file__, "controller", name]
    with (ROOT / name / "controller.log").open("wb") as log:
        subprocess.Popen(words, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def controller(name: str) -> None:
    """Start a pod for each index, replace failed ones as the policy says, follow `completions`, end when all have."""
    objects = json.loads((ROOT / name / "objects.json").read_text())
    spec, port = objects["Job"]["spec"], free_port()
    final = {v for rule in spec["podFailurePolicy"]["rules"] for v in rule.get("onExitCodes", {}).get("values", [])}
    starts: dict[int, int] = {}
    living: dict[int, tuple[subprocess.Popen, Path]] = {}
    failed, deleted, wanted = set(), False, 0
    while living or not starts:
        size = read_size(name, wanted)
        for index in range(wanted, size):
            starts.setdefault(index, 0)
            living[index] = start(name, objects, index, starts, port)
        for index in [index for index in living if index >= size > 0]:
            os.kill(living[index][0].pid, signal.SIGTERM)
        wanted = size
        time.sleep(0.1)
        if (ROOT / name / "deleted").exists() and not deleted:
            deleted = True
            for process, _ in living.values():
                os.kill(process.pid, signal.SIGTERM)
        for index, (process, folder) in list(living.items()):
            code = process.poll()
            if code is None:
                continue
            code = code if code >= 0 else 128 - code
            write(folder, index, "Succeeded" if code == 0 else "Failed", code)
            del living[index]
            if index >= wanted:
                continue  # the Job has shrunk: the pod does not count
            if code and not deleted and code not in final and starts[index] <= spec["backoffLimitPerIndex"]:
                living[index] = start(name, objects, index, starts, port)
            elif code:
                failed.add(index)
    condition = {"type": "Failed" if failed else "Complete", "status": "True"}
    (ROOT / name / "status.json").write_text(json.dumps({"conditions": [condition]}))


def read_size(name: str, known: int) -> int:
    """Pods of the Job; an elastic Indexed Job has as many completions as may run at once."""
    try:
        spec = json.loads((ROOT / name / "objects.json").read_text())["Job"]["spec"]
    except (FileNotFoundError, json.JSONDecodeError):
        return known
    assert spec["completions"] == spec["parallelism"], spec
    return int(spec["completions"])


def patch(job: str, change: str) -> None:
    """`kubectl patch job/NAME --type=merge -p CHANGE`, of the Job's spec alone."""
    file = ROOT / job.removeprefix("job/") / "objects.json"
    objects = json.loads(file.read_text())
    objects["Job"]["spec"].update(json.loads(change)["spec"])
    part = file.with_suffix(".part")
    part.write_text(json.dumps(objects))
    part.rename(file)


def start(name: str, objects: dict, index: int, starts: dict, port: int):
    """A pod: its own folder, its key and nobody else's, and the container's command with local paths."""
    starts[index] += 1
    folder = ROOT / name / f"pod-{index}-{starts[index]}"
    folder.mkdir()
    data, pod = objects["Secret"]["data"], objects["Job"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    mounts = {
        mount.get("subPathExpr", mount.get("subPath", "")): mount["mountPath"] for mount in container["volumeMounts"]
    }
    script = folder / Path(mounts["script"]).name
    script.write_bytes(base64.b64decode(data["script"]))
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(base64.b64decode(data[f"key-{index}"]))
    words = [str(script) if word == mounts["script"] else word for word in container["command"]]
    words[0] = sys.executable
    runs = ROOT / name / "claim"
    runs.mkdir(exist_ok=True)
    given = {each["name"]: each.get("value", "") for each in container["env"]}
    assert set(given) == {"JOB_COMPLETION_INDEX", "SHOAL_ADDRESS", "SHOAL_HEAD", "SHOAL_RUNS"}
    variables = {"JOB_COMPLETION_INDEX": str(index), "SHOAL_ADDRESS": "127.0.0.1", "SHOAL_HEAD": f"127.0.0.1:{port}"}
    environment = {**os.environ, **variables, "SHOAL_RUNS": str(runs), "SHOAL_KEY": str(key)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    write(folder, index, "Running", None)
    return process, folder


def write(folder: Path, index: int, phase: str, code: int | None) -> None:
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
    annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
    pod = {
        "metadata": {"name": folder.name, "annotations": annotations, "creationTimestamp": f"{time.time():017.6f}"},
        "status": {"phase": phase, "containerStatuses": [{"state": state}]},
    }
    part = folder / "status.part"
    part.write_text(json.dumps(pod))
    part.rename(folder / "status.json")


def get(words: list[str]) -> None:
    if words[0] == "pods":
        name = words[words.index("-l") + 1].rpartition("=")[2]
        pods = [json.loads(path.read_text()) for path in sorted((ROOT / name).glob("pod-*/status.json"))]
        sys.stdout.write(json.dumps({"items": pods}))
    else:
        file = ROOT / words[0].removeprefix("job/") / "status.json"
        sys.stdout.write(json.dumps({"status": json.loads(file.read_text()) if file.exists() else {}}))


def logs(pod: str) -> None:
    folder = next(ROOT.glob(f"*/{pod}"))
    with (folder / "log").open("rb") as file:
        while True:
            running = json.loads((folder / "status.json").read_text())["status"]["phase"] == "Running"
            while data := file.read1(1 << 16):
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
            if not running:
                return
            time.sleep(0.1)


def delete(words: list[str]) -> None:
    name = words[0].removeprefix("job/")
    (ROOT / name / "deleted").touch()
    while not (ROOT / name / "status.json").exists():
        time.sleep(0.05)
    (ROOT / name / "objects.json").unlink()


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def main(words: list[str]) -> None:
    match words:
        case ["apply", "-f", "-"]:
            apply()
        case ["patch", job, "--type=merge", "-p", change]:
            patch(job, change)
        case ["controller", name]:
            controller(name)
        case ["get", *rest]:
            get(rest)
        case ["logs", "--follow", pod]:
            logs(pod)
        case ["delete", *rest]:
            delete(rest)
        case ["auth", "can-i", *_]:
            sys.stdout.write("yes\n")
        case _:
            sys.exit(f"fake kubectl: no {words}")


if __name__ == "__main__":
    main(sys.argv[1:])
