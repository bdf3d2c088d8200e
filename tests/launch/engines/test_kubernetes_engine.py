"""`shoal run --on k8s`: manifests validated strictly for 1.28 to 1.37, and pods as processes of this machine."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_kubectl
import pytest
from forked import shoal
from soaked import SoakedEnds

from shoal.core.errors import UsageError
from shoal.launch.engines import kubernetes_job
from shoal.launch.engines.base import EngineOptions, EngineRole
from shoal.launch.engines.kubernetes import KubernetesEngine
from shoal.launch.engines.kubernetes_job import exit_code
from shoal.launch.engines.kubernetes_manifest import PodSettings, manifest, new_keys
from shoal.testing import EngineRun

kubernetes_validate = pytest.importorskip("kubernetes_validate")


def options(folder: Path, nodes: int = 3) -> EngineOptions:
    script = folder / "train.py"
    script.write_text("print('hello')\n")
    command = ("--on", "k8s:img", "--nodes", str(nodes), "--runs", "here", "--name", "one", str(script), "--lr", "1")
    return EngineOptions("img", nodes, 2, name="one", runs=folder, command=command)


@pytest.mark.parametrize("minor", range(28, 38))
def test_manifests_are_valid(tmp_path: Path, minor: int) -> None:
    asked = options(tmp_path)
    for each in manifest(asked, PodSettings("img", "space", "claim"), new_keys(asked)):
        kubernetes_validate.validate(each, f"1.{minor}", strict=True)


def test_a_pod_is_given_its_own_key_and_no_other(tmp_path: Path) -> None:
    asked = options(tmp_path)
    keys = new_keys(asked)
    secret, service, job = manifest(asked, PodSettings("img"), keys)
    assert sorted(secret["data"]) == ["key-0", "key-1", "key-2", "script"]
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    mounted = [mount.get("subPathExpr") or mount.get("subPath") for mount in container["volumeMounts"]]
    assert mounted == ["key-$(JOB_COMPLETION_INDEX)", "script", None], "and never the whole Secret"
    text = json.dumps([service, job])
    assert not any(line.split('"')[1] in text for key in keys for line in key.splitlines() if "secret" in line)
    assert container["command"][-3:] == ["/etc/shoal/script/train.py", "--lr", "1"]
    assert "--runs" not in container["command"], "the folder of runs is the volume's"
    assert pod["subdomain"] == service["metadata"]["name"]


def test_dry_run_prints_all_objects_and_no_secret(tmp_path: Path) -> None:
    asked = options(tmp_path)
    outcome = shoal(
        tmp_path, "run", "--on", "k8s:img,claim=c", "--nodes", "3", "--name", "one", "--dry-run", "train.py"
    )
    assert outcome.code == 0, outcome.err
    objects = json.loads(outcome.out)["items"]
    assert [each["kind"] for each in objects] == ["Secret", "Service", "Job"]
    assert base64.b64decode(objects[0]["data"]["key-1"]) == b"made when the job is submitted"
    with pytest.raises(UsageError, match="no setting 'x'"):
        KubernetesEngine(EngineOptions("img,x=1", 2), {})
    upper = KubernetesEngine(replace(asked, name="Upper"), {})
    with pytest.raises(UsageError, match="small letters"):
        upper.preview()


def test_a_job_that_may_grow_has_keys_for_pods_to_come(tmp_path: Path) -> None:
    asked = options(tmp_path)
    secret, _, job = manifest(asked, PodSettings("img", most=5), new_keys(asked, 5))
    assert [f"key-{index}" in secret["data"] for index in (4, 5)] == [True, False]
    assert base64.b64decode(secret["data"]["key-0"]).decode().count("=2\n") == 4, "pod 0 lets in all others"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 3
    for most in ("2", "257", "many"):
        with pytest.raises(UsageError, match=f"most={most} is no number from --nodes to 256"):
            KubernetesEngine(EngineOptions(f"img,most={most}", 3), {})


def test_the_role_follows_from_the_index(tmp_path: Path) -> None:
    def role(**variables: str) -> EngineRole:
        return KubernetesEngine(options(tmp_path), variables).role

    roles = [role(), role(JOB_COMPLETION_INDEX="0"), role(JOB_COMPLETION_INDEX="2")]
    assert roles == [EngineRole.SUBMIT, EngineRole.HEAD, EngineRole.JOIN]


def test_the_exit_code_is_that_of_the_newest_pod_0() -> None:
    def pod(index: int, moment: str, code: int | None) -> dict[str, object]:
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        metadata = {"annotations": annotations, "creationTimestamp": moment}
        return {"metadata": metadata, "status": {"containerStatuses": [{"state": state}]}}

    assert exit_code([pod(0, "1", 137), pod(0, "2", None), pod(1, "1", 0)]) is None
    assert exit_code([pod(0, "1", 137), pod(0, "2", 3)]) == 3
    assert exit_code([]) is None


def test_a_job_that_ends_between_two_looks_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer of kubectl is older than the next: pod 0 ends right after the first of a round."""
    asked: list[str] = []

    def answer(words: list[str], what: str) -> str:
        asked.append(words[1])
        ended = len(asked) > 1
        if words[1] == "pods":
            state = {"terminated": {"exitCode": 0}} if ended else {"running": {}}
            head = {"name": "pod-0", "annotations": {"batch.kubernetes.io/job-completion-index": "0"}}
            status = {"phase": "Pending", "containerStatuses": [{"state": state}]}
            return json.dumps({"items": [{"metadata": head, "status": status}]})
        return json.dumps({"status": {"conditions": [{"type": "Complete", "status": "True"}] if ended else []}})

    monkeypatch.setattr(kubernetes_job, "run_tool", answer)
    assert kubernetes_job._watch([], "name", {}) == 0


class TestKubernetes(SoakedEnds):
    """The Secret, the roles and the following are real; the cluster is a folder."""

    size = 2
    root: Path
    kubectl: dict[str, str]

    @pytest.fixture(autouse=True)
    def _cluster(self, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
        request.instance.root = tmp_path_factory.mktemp("cluster")

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        kubectl = f"{sys.executable} {fake_kubectl.__file__}"
        self.kubectl = {"SHOAL_KUBECTL": kubectl, "FAKE_CLUSTER": str(self.root)}
        return ["--on", "k8s:img,most=3", "--nodes", "2"], self.kubectl

    def add_machine(self, run: EngineRun) -> None:
        self.resize(run, 3)

    def remove_machine(self, run: EngineRun) -> None:
        self.resize(run, 2)

    def resize(self, run: EngineRun, pods: int) -> None:
        """As a user of kubectl does it: an Indexed Job changes both numbers at once."""
        change = json.dumps({"spec": {"completions": pods, "parallelism": pods}})
        words = [*self.kubectl["SHOAL_KUBECTL"].split(), "patch", f"job/{run.name}", "--type=merge", "-p", change]
        subprocess.run(words, env={**os.environ, **self.kubectl}, check=True)

    def lose_node(self, run: EngineRun) -> object:
        """A pod with all its processes; the Job replaces it."""
        before = run.training(self.size)
        for pid in run.processes():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # gone with the one killed before it
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if b"JOB_COMPLETION_INDEX=1" in environment:
                    os.kill(pid, signal.SIGKILL)
        run.wait_for(lambda: self.replaced(run, before), "the pod is replaced")
        return None

    def after_error(self, run: EngineRun) -> None:
        """The pod's index fails for good; the other comes to the end, and the job's code is that of pod 0."""
        (run.folder / "over.fail").unlink()
        run.wait_for(lambda: run.training(1), "the other goes on")
        assert run.end() == 0, run.said

    def check_nothing_left(self) -> None:
        assert not list(self.root.glob("*/objects.json")), "objects are left in the cluster"
