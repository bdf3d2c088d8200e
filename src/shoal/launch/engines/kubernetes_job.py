"""The objects of a run on Kubernetes, and following them with kubectl.

The Secret holds one entry for each pod, and a pod is given only its own: the run's key stays in pod 0. Pods that a node
drain or a preemption takes away do not count as failures; others are replaced three times; an error of the script, or a
refusal, is final.
"""

import base64
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineOptions, run_tool
from shoal.launch.engines.relay import RelayOutput, open_relay
from shoal.transport.keys import CurveKeyPair, KeyFile

KEY_FILE, SCRIPT_FOLDER, RUNS_FOLDER = "/etc/shoal/key", "/etc/shoal/script", "/var/shoal/runs"
PORT = 7700
GRACE, RETRIES = 90, 3
"""Seconds in which a pod that is to end may take a checkpoint; replacements of one pod."""
LARGEST_SCRIPT = 900 << 10
"""A Secret has 1 MiB at most."""
LOOK = 1.0


@dataclass(frozen=True)
class PodSettings:
    """What the user says about pods."""

    image: str
    namespace: str = ""
    claim: str = ""


def new_keys(options: EngineOptions) -> list[str]:
    """The key files of all pods: that of pod 0 is the run's own, with a line for everybody who may join."""
    run = CurveKeyPair.new()
    invited = [CurveKeyPair.new() for _ in range(1, options.nodes or 1)]
    allowed = "\n".join(f"{pair.public.decode()}={options.workers}" for pair in invited)
    return [f"{KeyFile(run).text}\n{allowed}\n", *(KeyFile(pair, run.public).text for pair in invited)]


def manifest(options: EngineOptions, settings: PodSettings, keys: list[str] | None) -> list[dict[str, Any]]:
    """Secret, Service and Job; without keys for `--dry-run`, which prints no secret."""
    name, nodes = check_name(options.name), options.nodes or 1
    script = next((Path(word) for word in options.command if word.endswith(".py") and Path(word).is_file()), None)
    if script is None:
        raise UsageError("--on k8s takes the script along: give the path of a file whose name ends in .py")
    if (size := script.stat().st_size) > LARGEST_SCRIPT:
        raise UsageError(f"{script} has {size} bytes; on Kubernetes a script may have {LARGEST_SCRIPT}")
    told = keys or ["made when the job is submitted" for _ in range(nodes)]
    data = {f"key-{index}": encode(text) for index, text in enumerate(told)}
    data["script"] = encode(script.read_text())
    head = {"name": name, "labels": {"app.kubernetes.io/name": "shoal", "app.kubernetes.io/instance": name}}
    selector = {"app.kubernetes.io/instance": name}
    ports = [{"name": "shoal", "port": PORT}]
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector, "ports": ports}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": head, "type": "Opaque", "data": data},
        {"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": job(options, settings, head, script)},
    ]


def job(options: EngineOptions, settings: PodSettings, head: dict[str, Any], script: Path) -> dict[str, Any]:
    """Indexed, with a pod for each machine, all at once."""
    final = {"containerName": "shoal", "operator": "In", "values": [1, 2]}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    rules = [
        {"action": "Ignore", "onPodConditions": disrupted},
        {"action": "FailIndex", "onExitCodes": final, "onPodConditions": []},
    ]
    return {
        "completions": options.nodes or 1,
        "parallelism": options.nodes or 1,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": RETRIES,
        "podFailurePolicy": {"rules": rules},
        "template": {"metadata": {"labels": head["labels"]}, "spec": pod(options, settings, script)},
    }


def pod(options: EngineOptions, settings: PodSettings, script: Path) -> dict[str, Any]:
    """The same for all; a pod's index says which key it is given."""
    name, path = options.name, f"{SCRIPT_FOLDER}/{script.name}"
    words = [path if word == str(script) else word for word in without(options.command, "--runs")]
    # the field, not the variable of the same name: a mount is made before the container has variables of its own
    index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    env = [
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": index}},
        {"name": "SHOAL_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "SHOAL_HEAD", "value": f"{name}-0.{name}:{PORT}"},
        {"name": "SHOAL_RUNS", "value": RUNS_FOLDER},
    ]
    mounts = [
        {"name": "secret", "mountPath": KEY_FILE, "subPathExpr": "key-$(JOB_COMPLETION_INDEX)", "readOnly": True},
        {"name": "secret", "mountPath": path, "subPath": "script", "readOnly": True},
        {"name": "runs", "mountPath": RUNS_FOLDER},
    ]
    kept = {"persistentVolumeClaim": {"claimName": settings.claim}} if settings.claim else {"emptyDir": {}}
    container = {
        "name": "shoal",
        "image": settings.image,
        "command": ["python3", "-m", "shoal", "run", *words],
        "env": env,
        "ports": [{"name": "shoal", "containerPort": PORT}],
        "resources": {"requests": {"cpu": str(options.workers)}},
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": GRACE,
        "containers": [container],
        "volumes": [{"name": "secret", "secret": {"secretName": name, "defaultMode": 0o400}}, {"name": "runs", **kept}],
    }


def without(words: tuple[str, ...], option: str) -> list[str]:
    """The command without an option and its value."""
    kept = list(words)
    if option in kept:
        at = kept.index(option)
        del kept[at : at + 2]
    return kept


def check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", name):
        raise UsageError(f"--name {name}: Kubernetes wants small letters, digits and -, a letter first; choose another")
    return name


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def show(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2)


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
        return 130
    finally:
        words = [*kubectl, "delete", f"job/{name}", f"service/{name}", f"secret/{name}", "--ignore-not-found"]
        with_time = [*words, "--cascade=foreground", f"--timeout={GRACE + 30}s"]
        deleting = open_relay(with_time)
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
