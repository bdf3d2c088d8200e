"""Sources find versions: in folders, files and the registry."""

import asyncio
import os
from pathlib import Path

import pytest
import torch
from served import core_of, onnx_file, x

from shoal.core.errors import UsageError
from shoal.models.registry import Registry
from shoal.serve.server import load_all
from shoal.serve.source import FileSource, FolderSource, LoadOptions, RegistrySource
from shoal.serve.targets import SourceFinder


def answer(core, name: str = "m") -> tuple[int, float]:  # type: ignore[no-untyped-def]
    found = asyncio.run(core.infer(name, x([1.0, 1.0])))
    return found.number, float(found.outputs["y"][0, 0])


def test_a_new_version_folder_is_found_and_loaded_by_the_next_poll(tmp_path: Path) -> None:
    onnx_file(tmp_path / "1" / "model.onnx", 2.0)
    core = core_of(FolderSource("m", tmp_path))
    assert answer(core) == (1, 2.0)
    onnx_file(tmp_path / "7" / "model.onnx", 5.0)
    core.poll()
    assert answer(core) == (7, 5.0)


def test_the_server_polls_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        onnx_file(tmp_path / "1" / "model.onnx", 2.0)
        core = core_of(FolderSource("m", tmp_path))
        polling = asyncio.create_task(core.poll_for_ever(0.01))
        onnx_file(tmp_path / "2" / "model.onnx", 5.0)
        async with asyncio.timeout(60):
            while core.manager.serving("m") != 2:
                await asyncio.sleep(0.01)
        polling.cancel()
        await core.close()

    asyncio.run(main())


def test_what_is_no_version_is_passed_over(tmp_path: Path) -> None:
    onnx_file(tmp_path / "1" / "model.onnx")
    (tmp_path / "2").mkdir()  # its file is not there yet
    (tmp_path / "notes").mkdir()
    (tmp_path / "3").write_text("")
    assert list(FolderSource("m", tmp_path).poll()) == [1]


def test_a_damaged_version_leaves_the_old_one_in_service(tmp_path: Path) -> None:
    onnx_file(tmp_path / "1" / "model.onnx", 2.0)
    core = core_of(FolderSource("m", tmp_path))
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "model.onnx").write_bytes(b"garbage")
    core.poll()
    assert answer(core) == (1, 2.0)
    failed = core.manager.versions("m")[1]
    assert (failed.state, "is no ONNX file" in failed.error) == ("failed", True)
    onnx_file(tmp_path / "2" / "model.onnx", 5.0)
    for _ in range(5):  # it is tried again, ever more seldom
        core.poll()
    assert answer(core) == (2, 5.0)


def test_a_changed_file_is_the_next_version(tmp_path: Path) -> None:
    path = onnx_file(tmp_path / "m.onnx", 2.0)
    core = core_of(FileSource("m", path))
    core.poll()
    assert answer(core) == (1, 2.0)
    onnx_file(path, 4.0)
    os.utime(path, ns=(1, 1))  # another time, however coarse the clock of the file system is
    core.poll()
    assert answer(core) == (2, 4.0)
    path.unlink()
    core.poll()
    assert answer(core) == (2, 4.0)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    found = Registry(tmp_path / "models")
    for factor in (2.0, 3.0, 4.0):
        found.add("m", files={"model.onnx": onnx_file(tmp_path / "m.onnx", factor).read_bytes()})
    found.tag("m:2", "prod")
    return found


class TestRegistry:
    def test_an_alias_is_followed_forward_and_back(self, registry: Registry) -> None:
        core = core_of(RegistrySource("m", "m@prod", registry))
        assert answer(core) == (2, 3.0)
        for version, factor in ((3, 4.0), (1, 2.0)):
            registry.tag(f"m:{version}", "prod")
            core.poll()
            assert answer(core) == (version, factor)

    def test_a_name_is_its_newest_version_and_a_number_stays(self, registry: Registry, tmp_path: Path) -> None:
        newest, third = (core_of(RegistrySource("m", ref, registry)) for ref in ("m", "m:3"))
        registry.add("m", files={"model.onnx": onnx_file(tmp_path / "m.onnx", 9.0).read_bytes()})
        newest.poll()
        third.poll()
        assert (answer(newest), answer(third)) == ((4, 9.0), (3, 4.0))

    def test_what_is_served_cannot_be_removed(self, registry: Registry) -> None:
        core = core_of(RegistrySource("m", "m:3", registry))
        with pytest.raises(UsageError, match="in use by a run or server"):
            registry.remove("m:3")
        core.manager.retire("m")
        core._loading.submit(int).result(60)  # behind the unloading
        registry.remove("m:3")

    def test_weights_without_a_program_need_a_module(self, registry: Registry, tmp_path: Path) -> None:
        layer = torch.nn.Linear(2, 2)
        registry.add("w", layer.state_dict())
        core = core_of(RegistrySource("w", "w", registry))
        with pytest.raises(UsageError, match="w:1 holds no program; give --module"):
            load_all(core)
        (tmp_path / "net.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(2, 2)\n")
        core = core_of(RegistrySource("w", "w", registry, LoadOptions(module=f"{tmp_path}/net.py:make")))
        found = asyncio.run(core.infer("w", x([1.0, 2.0]))).outputs["output"]
        assert torch.allclose(torch.from_numpy(found), layer(torch.tensor([[1.0, 2.0]])))

    def test_a_model_that_is_not_there_is_named(self, registry: Registry) -> None:
        core = core_of(RegistrySource("x", "nobody@prod", registry))
        with pytest.raises(UsageError, match="no model 'nobody'"):
            load_all(core)


class TestFinder:
    def test_words_become_sources(self, registry: Registry, tmp_path: Path) -> None:
        folder = tmp_path / "Many Versions"
        onnx_file(folder / "1" / "model.onnx")
        file = onnx_file(tmp_path / "one.onnx")
        finder = SourceFinder(registry)
        words = [str(folder), str(file), f"two={file}", "m@prod", "three=m", f"{tmp_path}/code.py:make"]
        found = [finder.find(word) for word in words]
        kinds = [type(each).__name__.removesuffix("Source") for each in found]
        assert kinds == ["Folder", "File", "File", "Registry", "Registry", "Object"]
        assert [each.name for each in found] == ["many-versions", "one", "two", "m", "three", "code"]

    @pytest.mark.parametrize("word", ["nowhere.onnx", "./nowhere", "No Name", "m:x"])
    def test_words_that_name_nothing_are_refused(self, registry: Registry, word: str) -> None:
        with pytest.raises(UsageError):
            SourceFinder(registry).find(word)
