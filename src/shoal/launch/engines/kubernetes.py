"""`--on k8s:IMAGE`: an Indexed Job whose pod 0 is the head and whose other pods join it.

    outside   kubectl apply (Secret, headless Service, Job), follow all pods, delete everything at the end
    pod 0     listens at port 7700 of its own address; the Service gives it a name
    pod K     reads its invitation, which no other pod is given, and joins pod 0

WHERE is IMAGE[,namespace=N][,claim=C][,most=M]: the image has Python with Shoal and torch; the claim, a volume that all
pods can write, keeps record and checkpoints; `most` pods have keys, so that the Job may grow.
$SHOAL_KUBECTL is the command, if it is not `kubectl`.
"""

import os
import shlex
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.launch.address import ADDRESS_VARIABLE, parse
from shoal.launch.engines.base import EngineMachine, EngineOptions, EngineRole, JoinOrder, LaunchEngine, run_tool
from shoal.launch.engines.findings import DoctorFinding
from shoal.launch.engines.kubernetes_job import follow
from shoal.launch.engines.kubernetes_manifest import KEY_FILE, MOST_PODS, PodSettings, manifest, new_keys, show
from shoal.membership.allow_list import parse_allowed

COMMAND_VARIABLE, INDEX, HEAD = "SHOAL_KUBECTL", "JOB_COMPLETION_INDEX", "SHOAL_HEAD"
SETTINGS = ("namespace", "claim", "most")


class KubernetesEngine(LaunchEngine):
    """Inside of a pod the variables of an Indexed Job say which one it is."""

    name = "kubernetes"

    def __init__(self, options: EngineOptions, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        self._said = os.environ if environment is None else environment
        self._index = self._said.get(INDEX)
        image, *rest = options.where.split(",")
        pairs = dict(word.partition("=")[::2] for word in rest)
        if unknown := [name for name in pairs if name not in SETTINGS]:
            raise UsageError(f"--on k8s:{options.where}: no setting {unknown[0]!r}; there are {', '.join(SETTINGS)}")
        if self._index is None and not image:
            raise UsageError("--on k8s names no image; write --on k8s:IMAGE, one that has Python with shoal and torch")
        most = pairs.get("most", str(options.nodes or 1))
        if not most.isdecimal() or not (options.nodes or 1) <= int(most) <= MOST_PODS:
            raise UsageError(f"--on k8s:{options.where}: most={most} is no number from --nodes to {MOST_PODS}")
        self._settings = PodSettings(image, pairs.get("namespace", ""), pairs.get("claim", ""), int(most))

    @property
    def _kubectl(self) -> list[str]:
        words = shlex.split(self._said.get(COMMAND_VARIABLE, "kubectl"))
        return [*words, *(["--namespace", self._settings.namespace] if self._settings.namespace else [])]

    @property
    def role(self) -> EngineRole:
        if self._index is None:
            return EngineRole.SUBMIT
        return EngineRole.HEAD if self._index == "0" else EngineRole.JOIN

    @property
    def begins_again(self) -> bool:
        return True  # a pod that replaces pod 0 finds the record on the volume, if there is one

    @property
    def own_name(self) -> str:
        return f"pod{self._index}"

    def preview(self) -> str:
        """Without keys: they are made when the job is submitted."""
        return show(manifest(self.options, self._settings, None))

    def submit(self) -> int:
        made = manifest(self.options, self._settings, new_keys(self.options, self._settings.most))
        return follow(self._kubectl, self.options.name, made)

    @property
    def keys(self) -> tuple[str, dict[bytes, int]]:
        """Pod 0 has the run's key, and after it the public keys of the others."""
        key, _, allowed = Path(self._said.get("SHOAL_KEY", KEY_FILE)).read_text().partition("\n\n")
        return key, dict(parse_allowed(line) for line in allowed.split())

    def address(self) -> tuple[str, int]:
        return self._said[ADDRESS_VARIABLE], int(self._said[HEAD].rpartition(":")[2])

    def machines(self) -> list[EngineMachine]:
        return [EngineMachine(f"pod{index}", self.options.workers) for index in range(1, self.options.nodes or 1)]

    def start(self, machine: EngineMachine, order: JoinOrder) -> None:
        return None  # it has its invitation from the Secret

    def receive(self, deadline: Deadline) -> tuple[str, str]:
        """Once pod 0 listens; its name is known to the cluster only when its pod is there."""
        while not deadline.expired:
            try:
                where = parse(self._said[HEAD], HEAD)
                # Only whether pod 0 listens: `shoal join` makes its own connection.
                socket.create_connection(where, timeout=5.0).close()
            except (UsageError, OSError):
                time.sleep(0.5)
            else:
                return self._said[HEAD], Path(self._said.get("SHOAL_KEY", KEY_FILE)).read_text()
        raise UsageError(f"pod {self._index} waited {deadline.budget:.0f} s for pod 0 at {self._said[HEAD]}")

    def findings(self) -> list[DoctorFinding]:
        command = shutil.which(self._kubectl[0])
        if command is None:
            return [DoctorFinding("kubectl", "not found", False, "install it, and give it access to your cluster")]
        try:
            allowed = run_tool([*self._kubectl, "auth", "can-i", "create", "jobs.batch"], "kubectl").strip()
        except UsageError as error:
            return [
                DoctorFinding("kubectl", command),
                DoctorFinding("cluster", str(error), False, "check kubectl config view"),
            ]
        return [
            DoctorFinding("kubectl", command),
            DoctorFinding("may create jobs", allowed, allowed == "yes", "ask for the role edit"),
        ]
