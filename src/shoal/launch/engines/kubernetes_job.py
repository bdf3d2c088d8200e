"""Follows the Job of a run with kubectl, from applying its objects to deleting them."""

import json
import subprocess
import sys
import time
from typing import Any

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.launch.engines.base import run_tool
from shoal.launch.engines.kubernetes_manifest import GRACE, show
from shoal.launch.engines.relay import RelayOutput, open_relay

LOOK = 1.0


def follow(kubectl: list[str], name: str, objects: list[dict[str, Any]]) -> int:
    """Apply, pass on what all pods write, delete; returns the exit code of pod 0. Ctrl-C deletes; pods may save."""
    applied = subprocess.run(
        [*kubectl, "apply", "-f", "-"], input=show(objects), capture_output=True, text=True, check=False, timeout=60
    )
    if applied.returncode:
        raise UsageError(f"kubectl apply: {(applied.stderr.strip().splitlines() or ['failed'])[-1]}")
    sys.stderr.write(f"shoal: job {name} is on Kubernetes; Ctrl-C ends and deletes it\n")
    logs: dict[str, RelayOutput] = {}
    try:
        return _watch(kubectl, name, logs)
    except KeyboardInterrupt:
        # The exit code of a shell's command that Ctrl-C has ended.
        return 130
    finally:
        words = [*kubectl, "delete", f"job/{name}", f"service/{name}", f"secret/{name}", "--ignore-not-found"]
        with_time = [*words, "--cascade=foreground", f"--timeout={GRACE + 30}s"]
        deleting = open_relay(with_time)
        # Longer than kubectl's own limit, so that its error is seen instead of ours.
        deadline = Deadline.after(GRACE + 60.0)
        while deleting.poll() is None and not deadline.expired:
            _pass_on(logs)
            time.sleep(0.05)
        for output in logs.values():
            _pass_on({"": output}, output.drain(Deadline.after(2.0)))
            output.end()


def _watch(kubectl: list[str], name: str, logs: dict[str, RelayOutput]) -> int:
    due = 0.0
    while True:
        _pass_on(logs)
        time.sleep(0.05)
        if time.monotonic() < due:
            continue
        due = time.monotonic() + LOOK
        # the job before its pods: once it is complete, what the pods say is final
        job_said = json.loads(run_tool([*kubectl, "get", f"job/{name}", "-o", "json"], "kubectl"))
        said = run_tool([*kubectl, "get", "pods", "-l", f"app.kubernetes.io/instance={name}", "-o", "json"], "kubectl")
        pods = json.loads(said)["items"]
        for each in pods:
            known = each["metadata"]["name"]
            # Not while it is pending: `kubectl logs` fails until the container has started.
            if known not in logs and each["status"].get("phase") in ("Running", "Succeeded", "Failed"):
                logs[known] = RelayOutput(open_relay([*kubectl, "logs", "--follow", known]))
        ended = any(
            c["type"] in ("Complete", "Failed") and c["status"] == "True"
            for c in job_said["status"].get("conditions", [])
        )
        code = exit_code(pods)
        if ended or code == 0:
            return 1 if code is None else code


def exit_code(pods: list[dict[str, Any]]) -> int | None:
    """Of the newest pod 0; None while it runs."""
    heads = [each for each in pods if index_of(each) == "0"]
    for each in sorted(heads, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), reverse=True):
        for status in each["status"].get("containerStatuses", []):
            if "terminated" in status["state"]:
                return int(status["state"]["terminated"]["exitCode"])
        return None
    return None


def index_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"].get("annotations", {}).get("batch.kubernetes.io/job-completion-index", ""))


def _pass_on(logs: dict[str, RelayOutput], lines: list[tuple[str, str]] | None = None) -> None:
    for output in logs.values():
        for _, line in output.read() if lines is None else lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
