"""Answers of `nvidia-smi --gpu-reset`, as in NVIDIA's issues, and NVML's facts before and after a reset."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.deep.reset_plan import ResetScope
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu, NvLink, RowRemap
from gpu_healthcheck.healthcheck.probes.pci import PciFunction
from gpu_healthcheck.repair.host_programs import ResetOutcome, link_libraries, read_reset_answer
from gpu_healthcheck.repair.record import after_reset, select, why_not_working
from gpu_healthcheck.sim.node import LIBRARY_DIRECTORY, SimulatedNode

IN_USE = """The following GPUs could not be reset:
  GPU 00000000:1A:00.0: In use by another client

1 device is currently being used by one or more other processes (e.g. Fabric
Manager, CUDA application)."""
OLD_IN_USE = "GPU 00000000:C1:00.0 is currently in use by another process.\n"
DRIVERS = ("libcuda", "libnvidia-ml")
DONE = "GPU 00000000:1A:00.0 was successfully reset.\nAll done.\n"


@pytest.mark.parametrize(
    ("code", "text", "outcome"),
    [
        (0, DONE, ResetOutcome.DONE),
        (255, IN_USE, ResetOutcome.IN_USE),
        (255, OLD_IN_USE, ResetOutcome.IN_USE),
        (255, DONE + IN_USE, ResetOutcome.IN_USE),
        (3, "Resetting GPU 00000000:1A:00.0 is not supported.", ResetOutcome.NOT_SUPPORTED),
        (255, "GPU Reset couldn't run because of an error: Unknown Error", ResetOutcome.FAILED),
        (0, "", ResetOutcome.FAILED),
        (1, DONE, ResetOutcome.FAILED),
        (0, "No devices were found", ResetOutcome.FAILED),
    ],
)
def test_answers_differ(code: int, text: str, outcome: ResetOutcome) -> None:
    assert read_reset_answer(code, text).outcome is outcome


def test_a_message_is_printable_and_short() -> None:
    message = read_reset_answer(1, "\x1b[31m" + "x\n" * 9000).message
    assert message.isprintable()
    assert len(message) <= 310


HEALTHY = RowRemap(0, 0, pending=False, failed=False)


def gpu(index: int, version: int | None = 6, **more: object) -> Gpu:
    links = (NvLink(0, active=True, version=version),)
    fields = {"uuid": f"GPU-{index}", "minor": index, "recovery_action": 0, "row_remap": HEALTHY, "nvlinks": links}
    return Gpu(index, address=f"0000:1{index}:00.0", **(fields | more))  # type: ignore[arg-type]


def on_pci(index: int, driver: str = "nvidia") -> PciFunction:
    return PciFunction(f"0000:1{index}:00.0", 0x10DE, 0x2330, 0x030200, driver)


NVSWITCH = PciFunction("0000:85:00.0", 0x10DE, 0x22A3, 0x068000, "nvidia-nvswitch")


@pytest.mark.parametrize("name", ["1", "GPU-1", "0000:11:00.0"])
def test_a_gpu_is_found_by_each_of_its_names(name: str) -> None:
    chosen = select([name], [gpu(0), gpu(1)], [on_pci(0), on_pci(1), NVSWITCH])
    assert ([row.index for row in chosen.gpus], list(chosen.names), set(chosen.minors)) == (["1"], ["GPU-1"], {1})


def test_linked_gpus_before_ampere_are_reset_together() -> None:
    chosen = select(["0"], [gpu(0, 2), gpu(1, 2), gpu(2, 2, nvlinks=())], [])
    assert (chosen.row.scope, chosen.names) == (ResetScope.LINKED, ("GPU-0", "GPU-1"))


def test_a_gpu_that_nvml_does_not_name_is_taken_from_pci() -> None:
    chosen = select(["0000:11:00.0"], [gpu(0)], [on_pci(0), on_pci(1)])
    assert ([row.address for row in chosen.gpus], chosen.minors) == (["0000:11:00.0"], frozenset())


def test_gpus_that_are_missing_or_handed_away() -> None:
    chosen = select(["9", "0000:11:00.0"], [gpu(0)], [on_pci(0), on_pci(1, "vfio-pci")])
    assert (chosen.missing, chosen.handed_away) == (("9",), ("0000:11:00.0",))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (gpu(1), ""),
        (gpu(1, recovery_action=None, row_remap=None), ""),
        (gpu(1, recovery_action=2), "recovery action 2"),
        (gpu(1, row_remap=replace(HEALTHY, pending=True)), "rows to be remapped"),
        (gpu(1, error=15), "does not answer NVML (error 15)"),
        (gpu(2), "does not answer NVML"),
    ],
)
def test_a_gpu_works_again(after: Gpu, message: str) -> None:
    chosen = select(["1"], [gpu(0), gpu(1)], [])
    why = "; ".join(why_not_working(chosen, [gpu(0), after]))
    assert (bool(why), message in why) == (bool(message), True)


def test_the_names_after_the_reset_count() -> None:
    chosen = select(["0000:11:00.0"], [gpu(0)], [on_pci(1)])
    (row,) = after_reset(chosen, [gpu(0), gpu(1)])
    assert (row.uuid, row.index) == ("GPU-1", "1")


def in_a_circle(file: Path) -> None:
    file.symlink_to(file.name)


def to_each_other(file: Path) -> None:
    file.symlink_to("libnvidia-b.so.1")
    file.with_name("libnvidia-b.so.1").symlink_to(file.name)


def to_nothing(file: Path) -> None:
    file.symlink_to("libnvidia-gone.so.1")


def to_a_folder(file: Path) -> None:
    file.symlink_to(".")


def through_a_file(file: Path) -> None:
    file.symlink_to("libnvidia-ml.so.1/x")


def to_a_pipe(file: Path) -> None:
    """A loader that opens it waits for a writer."""
    os.mkfifo(file.with_name("pipe"))
    file.symlink_to("pipe")


@pytest.mark.parametrize(
    "make", [in_a_circle, to_each_other, to_nothing, to_a_folder, through_a_file, to_a_pipe, os.mkfifo, Path.mkdir]
)
def test_what_is_no_library_is_left_out(node: SimulatedNode, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(node.root / LIBRARY_DIRECTORY / "libnvidia-a.so.1")
    link_libraries(node.root, tmp_path)

    linked = {link.name for link in tmp_path.iterdir() if link.is_symlink()}
    assert linked == {f"{name}.so.{version}" for name in DRIVERS for version in (1, node.driver_version)}


def test_a_library_of_another_folder_replaces_one_that_is_none(node: SimulatedNode, tmp_path: Path) -> None:
    in_a_circle(node.root / LIBRARY_DIRECTORY / "libnvidia-ptxjitcompiler.so.1")
    node.write_value("usr/lib/libnvidia-ptxjitcompiler.so.1", "")
    link_libraries(node.root, tmp_path)

    assert (tmp_path / "libnvidia-ptxjitcompiler.so.1").resolve().parent.name == "lib"


def test_a_folder_with_thousands_of_names_hides_no_library(node: SimulatedNode, tmp_path: Path) -> None:
    for number in range(10_000):
        in_a_circle(node.root / LIBRARY_DIRECTORY / f"libnvidia-{number}.so.1")
    link_libraries(node.root, tmp_path)

    assert (tmp_path / "libcuda.so.1").is_file()


def test_the_drivers_libraries_are_linked_and_no_other(node: SimulatedNode, tmp_path: Path) -> None:
    for name in ("libnvidia-ptxjitcompiler.so.1", "libc.so.6", "libnvidia-ml.so.1.evil/x"):
        node.write_value(f"usr/lib/x86_64-linux-gnu/{name}", "")

    folder = tmp_path / "links"
    folder.mkdir()
    link_libraries(node.root, folder)

    names = {link.name for link in folder.iterdir()}
    driver = {f"{name}.so.{version}" for name in DRIVERS for version in (1, node.driver_version)}
    assert names == {*driver, "libnvidia-ptxjitcompiler.so.1"}
    assert (folder / "libnvidia-ml.so.1").resolve().is_relative_to(node.root.resolve())
