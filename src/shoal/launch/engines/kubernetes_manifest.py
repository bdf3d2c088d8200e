"""The objects of a run on Kubernetes: Secret, headless Service and Indexed Job.

The Secret holds one entry for each pod, and a pod is given only its own: the run's key stays in pod 0. Pods that a node
drain or a preemption takes away do not count as failures; others are replaced three times; an error of the script, or a
refusal, is final.
"""

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineOptions
from shoal.transport.keys import CurveKeyPair, KeyFile

KEY_FILE, SCRIPT_FOLDER, RUNS_FOLDER = "/etc/shoal/key", "/etc/shoal/script", "/var/shoal/runs"
PORT = 7700
GRACE, RETRIES = 90, 3
"""Seconds in which a pod that is to end may take a checkpoint; replacements of one pod."""
LARGEST_SCRIPT = 900 << 10
"""A Secret has 1 MiB at most."""
MOST_PODS = 256
"""Keys of one Secret: 60 KB of it."""


@dataclass(frozen=True)
class PodSettings:
    """What the user says about pods."""

    image: str
    namespace: str = ""
    claim: str = ""
    most: int = 1
    """Pods that the Job may grow to: so many have keys."""


def new_keys(options: EngineOptions, most: int = 1) -> list[str]:
    """The key files of all pods: that of pod 0 is the run's own, with a line for everybody who may join."""
    run = CurveKeyPair.new()
    invited = [CurveKeyPair.new() for _ in range(1, max(options.nodes or 1, most))]
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
    told = keys or ["made when the job is submitted" for _ in range(max(nodes, settings.most))]
    data = {f"key-{index}": encode(text) for index, text in enumerate(told)}
    data["script"] = encode(script.read_text())
    head = {"name": name, "labels": {"app.kubernetes.io/name": "shoal", "app.kubernetes.io/instance": name}}
    selector = {"app.kubernetes.io/instance": name}
    ports = [{"name": "shoal", "port": PORT}]
    # Headless, and with addresses before pods are ready: pod 0 is ready only once the others can find it.
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector, "ports": ports}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": head, "type": "Opaque", "data": data},
        {"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": job(options, settings, head, script)},
    ]


def job(options: EngineOptions, settings: PodSettings, head: dict[str, Any], script: Path) -> dict[str, Any]:
    """Indexed, with a pod for each machine, all at once."""
    # Exit codes of a script that failed, and of a refusal: another pod would end the same way.
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
        # By index, so a pod never sees another's key.
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
