"""NVML through the real child process and the simulated driver's library."""

from __future__ import annotations

import ctypes.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck.checks.driver import CHECK
from healthcheck.expectation import Expectation
from healthcheck.model import Evidence, Finding, Host, Judgement, ProbeError, Severity, Unobserved
from healthcheck.probes.nvml import NVML, Driver, DriverLook, Gpu, Gpus, read_answer, read_driver
from sim.c_library import find_compiler
from sim.node import SimulatedNode

# nvml.h: every nvmlReturn_t but SUCCESS, and one that no header knows.
ERRORS = [*range(1, 31), 999, 12345]
NOT_OF_THE_GPU = (3, 4, 13, 25)
CAUSES = {9: "DriverNotLoaded", 18: "DriverLibraryMismatch"}
WITHOUT_ANSWER_OF: dict[str, Callable[[Gpu], Gpu]] = {
    "nvmlDeviceGetPciInfo_v3": lambda gpu: replace(gpu, address=""),
    "nvmlDeviceGetUUID": lambda gpu: replace(gpu, uuid=""),
    "nvmlDeviceGetSerial": lambda gpu: replace(gpu, serial=""),
    "nvmlDeviceGetName": lambda gpu: replace(gpu, name=""),
}
SHORT = 0.4


class Clock:
    """Seconds of a monotonic clock that moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def driver(node: SimulatedNode, clock: Clock) -> Iterator[Driver]:
    one = Driver(node.root, use_loader=False, clock=clock)
    yield one
    one.end()


def gpus(look: DriverLook) -> tuple[Gpu, ...]:
    assert isinstance(look.answer, Gpus), look.answer
    return look.answer.gpus


def cause(look: DriverLook) -> str:
    assert isinstance(look.answer, Unobserved), look.answer
    return look.answer.cause


def detail(look: DriverLook) -> str:
    assert isinstance(look.answer, Unobserved), look.answer
    return look.answer.detail


def judged(look: DriverLook) -> list[Judgement]:
    return list(CHECK.judge(Evidence({NVML: look}), Expectation()))


def healthy(node: SimulatedNode) -> tuple[Gpu, ...]:
    name = "NVIDIA H100 80GB HBM3"
    return tuple(
        Gpu(one.index, 0, one.address, one.uuid, one.serial, name, recovery_action=0, instances=()) for one in node.gpus
    )


class TestAnswers:
    def test_eight_gpus_answer_with_all_their_names(self, node: SimulatedNode, driver: Driver) -> None:
        library = node.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.133.20"

        assert driver.look() == DriverLook(Gpus("570.133.20", str(library), healthy(node)), (), 60.0)

    def test_one_child_answers_every_look(self, driver: Driver) -> None:
        driver.look()
        first = driver.child_pid
        driver.look()

        assert driver.child_pid == first is not None

    def test_a_gpu_is_told_by_all_the_names_that_it_has(self, driver: Driver) -> None:
        first = gpus(driver.look())[0]

        assert first.about == {"index": "0", "uuid": first.uuid, "serial": first.serial}
        assert Gpu(3).about == {"index": "3"}

    def test_a_lost_gpu_has_no_name_but_its_index_and_the_others_answer(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        node.lose_gpu(3)

        expected = list(healthy(node))
        expected[3] = Gpu(3, 15)
        assert gpus(driver.look()) == tuple(expected)

    def test_a_gpu_that_vanished_moves_the_later_ones_up(self, node: SimulatedNode, driver: Driver) -> None:
        node.remove_gpu(0)

        seen = gpus(driver.look())

        assert [one.address for one in seen] == [one.address for one in node.gpus[1:]]
        assert [one.index for one in seen] == list(range(7))

    def test_every_error_of_a_handle_is_told_for_that_gpu_alone(self, node: SimulatedNode, driver: Driver) -> None:
        told = {}
        for error in ERRORS:
            node.write_value("nvml/gpu2/error", error)
            seen = gpus(driver.look())
            assert seen[:2] + seen[3:] == healthy(node)[:2] + healthy(node)[3:]
            told[error] = seen[2]

        assert told == {error: Gpu(2, error) for error in ERRORS}

    @pytest.mark.parametrize("call", WITHOUT_ANSWER_OF)
    def test_an_error_of_a_call_is_the_gpus_unless_the_call_is_not_for_it(
        self, node: SimulatedNode, driver: Driver, call: str
    ) -> None:
        told = {}
        for error in ERRORS:
            node.write_value(f"nvml/gpu2/error.{call}", error)
            told[error] = gpus(driver.look())[2]

        nameless = WITHOUT_ANSWER_OF[call](healthy(node)[2])
        assert told == {error: replace(nameless, error=0 if error in NOT_OF_THE_GPU else error) for error in ERRORS}

    @pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlSystemGetDriverVersion"])
    def test_an_error_of_the_system_could_not_look(self, node: SimulatedNode, driver: Driver, call: str) -> None:
        told = {}
        for error in ERRORS:
            node.write_value(f"nvml/error/{call}", error)
            told[error] = cause(driver.look())

        assert told == {error: CAUSES.get(error, "NvmlError") for error in ERRORS}
        (node.root / "nvml/error" / call).unlink()
        assert gpus(driver.look()) == healthy(node)

    def test_an_error_of_the_system_is_told_with_its_number_and_the_library(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        node.write_value("nvml/error/nvmlInitWithFlags", 17)

        library = node.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.133.20"
        assert detail(driver.look()).endswith(f"(error 17, {library})")

    def test_a_shutdown_that_fails_spoils_no_answer(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/error/nvmlShutdown", 999)

        assert gpus(driver.look()) == healthy(node)

    def test_one_error_stands_for_a_gpu_that_fails_every_call(self, node: SimulatedNode, driver: Driver) -> None:
        for error, call in zip((3, 15, 16, 999), WITHOUT_ANSWER_OF, strict=True):
            node.write_value(f"nvml/gpu2/error.{call}", error)

        assert gpus(driver.look())[2] == Gpu(2, 15, recovery_action=0, instances=())

    @pytest.mark.parametrize(
        ("file", "value", "told"),
        [
            ("nvml/count", 4294967295, "NVML says that there are 4294967295 GPUs"),
            ("nvml/count", 257, "NVML says that there are 257 GPUs"),
            ("nvml/gpu0/bus_id", "nonsense", "GPU 0: bus id 'nonsense' is no PCI address"),
            ("nvml/gpu0/bus_id", "99999999:99:99.9.9", "is no PCI address"),
        ],
    )
    def test_nonsense_could_not_look(
        self, node: SimulatedNode, driver: Driver, file: str, value: object, told: str
    ) -> None:
        node.write_value(file, value)

        look = driver.look()

        assert (cause(look), told in detail(look)) == ("NvmlNonsense", True)

    def test_a_name_that_is_no_text_could_not_look(self, node: SimulatedNode, driver: Driver) -> None:
        (node.root / "nvml/gpu0/name").write_bytes(b"\xff\xfe\n")

        assert cause(driver.look()) == "NvmlNonsense"
        assert driver.child_pid is not None

    def test_more_gpus_than_there_are_give_no_handle(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/count", 10)

        assert [(one.index, one.error) for one in gpus(driver.look())[8:]] == [(8, 2), (9, 2)]

    def test_fewer_gpus_than_there_are_is_what_nvml_says(self, node: SimulatedNode, driver: Driver) -> None:
        node.write_value("nvml/count", 0)

        assert gpus(driver.look()) == ()


class TestRecoveryAction:
    def test_an_action_is_told_as_the_driver_numbers_it_known_or_not(self, node: SimulatedNode, driver: Driver) -> None:
        told = []
        for action in (0, 1, 7, 8, 4294967295):
            node.want_recovery(2, action)
            told.append(gpus(driver.look())[2])

        assert [one.recovery_action for one in told] == [0, 1, 7, 8, 4294967295]
        assert [replace(one, recovery_action=0) for one in told] == [healthy(node)[2]] * 5

    @pytest.mark.parametrize("place", ["error.field.230", "error.nvmlDeviceGetFieldValues"])
    def test_a_driver_without_the_field_has_none_and_any_other_error_kept_it_from_us(
        self, node: SimulatedNode, driver: Driver, place: str
    ) -> None:
        told = {}
        for error in ERRORS:
            node.write_value(f"nvml/gpu2/{place}", error)
            told[error] = gpus(driver.look())[2]

        absent = replace(healthy(node)[2], recovery_action=None)
        unread = {error: 0 if error in (2, *NOT_OF_THE_GPU) else error for error in ERRORS}
        assert told == {error: replace(absent, recovery_error=code) for error, code in unread.items()}

    def test_a_value_that_the_driver_never_wrote_is_no_action(self, node: SimulatedNode, driver: Driver) -> None:
        (node.root / "nvml/gpu2/field/230").unlink()

        assert gpus(driver.look())[2] == replace(healthy(node)[2], recovery_action=None)


class TestInstances:
    def instances(self, driver: Driver) -> tuple[int, ...] | None:
        return gpus(driver.look())[2].instances

    def test_each_gpu_instance_is_told_once_in_order_and_holes_are_none(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        node.divide_gpu(2, {0: 9, 1: 5, 4: 5, 6: 1})

        seen = gpus(driver.look())

        assert seen[2] == replace(healthy(node)[2], instances=(1, 5, 9))
        assert seen[:2] + seen[3:] == healthy(node)[:2] + healthy(node)[3:]

    def test_mig_mode_without_instances_has_none(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {})

        assert self.instances(driver) == ()

    def test_an_instance_that_was_destroyed_is_gone_at_the_next_look(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {0: 1, 1: 2})
        before = self.instances(driver)
        node.divide_gpu(2, {0: 1})

        assert (before, self.instances(driver)) == ((1, 2), (1,))

    def test_a_mode_that_is_only_pending_is_not_on(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {0: 1})
        node.write_value("nvml/gpu2/mig_current", 0)

        assert self.instances(driver) == ()

    def test_a_gpu_that_knows_no_mig_can_t_say(self, make_node: Callable[[str], SimulatedNode]) -> None:
        driver = Driver(make_node("g6.xlarge").root, use_loader=False)

        look = driver.look()
        driver.end()

        assert [(one.error, one.instances) for one in gpus(look)] == [(0, None)]

    @pytest.mark.parametrize(
        "call",
        [
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetMaxMigDeviceCount",
            "nvmlDeviceGetMigDeviceHandleByIndex",
            "nvmlDeviceGetGpuInstanceId",
        ],
    )
    def test_an_error_of_any_call_can_t_say_and_is_never_the_gpus(
        self, node: SimulatedNode, driver: Driver, call: str
    ) -> None:
        node.divide_gpu(2, {0: 1})
        told = {}
        for error in (3, 4, 13, 15, 999):
            node.write_value(f"nvml/gpu2/error.{call}", error)
            told[error] = gpus(driver.look())[2]

        assert told == dict.fromkeys(told, replace(healthy(node)[2], instances=None))

    def test_a_count_that_no_gpu_has_can_t_say(self, node: SimulatedNode, driver: Driver) -> None:
        node.divide_gpu(2, {0: 1})
        node.write_value("nvml/gpu2/mig_most", 4294967295)

        assert self.instances(driver) is None


class TestHangs:
    def hang(self, node: SimulatedNode, driver: Driver, function: str = "") -> DriverLook:
        driver.look()
        node.hang(function)
        driver.deadline_seconds = SHORT
        return driver.look()

    @pytest.mark.parametrize(
        "function", ["", "nvmlInitWithFlags", "nvmlDeviceGetSerial", "nvmlDeviceGetMigMode", "nvmlShutdown"]
    )
    def test_a_call_that_never_returns_is_a_missed_deadline_and_its_child_is_gone(
        self, node: SimulatedNode, driver: Driver, function: str
    ) -> None:
        driver.look()
        child = driver.child_pid

        look = self.hang(node, driver, function)

        assert (cause(look), look.missed, look.stuck_pid) == ("DriverNotAnswering", (1000.0,), None)
        assert detail(look) == "no answer in time; its process was killed (0.4 s)"
        assert (driver.child_pid, Path(f"/proc/{child}").exists()) == (None, False)

    def test_two_misses_half_a_minute_apart_are_a_fault_and_not_before(
        self, node: SimulatedNode, driver: Driver, clock: Clock
    ) -> None:
        said = [judged(self.hang(node, driver))]
        for _ in range(3):
            clock.seconds += 15
            said.append(judged(driver.look()))

        fault = Finding(
            "DriverUnresponsive", Severity.REBOOT, "driver", "no answer within 0.4 s, since 1000 s after boot"
        )
        assert [isinstance(one[0], Unobserved) for one in said] == [True, True, False, False]
        assert said[2:] == [[fault], [fault]]

    def test_a_driver_that_answers_again_is_no_fault_any_more(
        self, node: SimulatedNode, driver: Driver, clock: Clock
    ) -> None:
        self.hang(node, driver)
        clock.seconds += 60
        assert len(driver.look().missed) == 2

        node.unhang()
        driver.deadline_seconds = 60
        look = driver.look()

        assert (gpus(look), look.missed, judged(look)) == (healthy(node), (), [])

    def test_one_miss_long_ago_and_one_now_are_not_two_in_a_row(
        self, node: SimulatedNode, driver: Driver, clock: Clock
    ) -> None:
        self.hang(node, driver)
        node.unhang()
        driver.deadline_seconds = 60
        driver.look()
        clock.seconds += 3600

        assert self.hang(node, driver).missed == (4600.0,)

    @pytest.mark.parametrize("error", [9, 18, 999])
    def test_a_driver_that_refuses_does_not_hang(self, node: SimulatedNode, driver: Driver, error: int) -> None:
        self.hang(node, driver)
        node.unhang()
        node.write_value("nvml/error/nvmlInitWithFlags", error)
        driver.deadline_seconds = 60

        assert driver.look().missed == ()

    def test_a_new_driver_is_not_blamed_for_the_old_ones_hang(
        self, node: SimulatedNode, driver: Driver, clock: Clock
    ) -> None:
        self.hang(node, driver)
        node.unhang()
        node.driver_unload()
        node.driver_load("580.65.06")
        clock.seconds += 60

        look = driver.look()

        assert (cause(look), look.missed) == ("DriverBeingChanged", ())


class TestCrashes:
    @pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetUUID", "nvmlShutdown"])
    def test_a_crash_in_the_driver_is_a_failed_look_and_the_next_has_a_new_child(
        self, node: SimulatedNode, driver: Driver, function: str
    ) -> None:
        driver.look()
        first = driver.child_pid
        node.crash(function)

        look = driver.look()

        assert (cause(look), look.missed) == ("NvmlCrashed", ())
        assert detail(look) == "the look at NVML failed: the child was ended by SIGSEGV"
        node.stop_crashing()
        assert gpus(driver.look()) == healthy(node)
        assert driver.child_pid != first

    def test_a_child_that_the_oom_killer_took_is_replaced(self, node: SimulatedNode, driver: Driver) -> None:
        driver.look()
        assert driver.child_pid
        os.kill(driver.child_pid, signal.SIGKILL)

        seen = driver.look().answer

        assert isinstance(seen, Unobserved) or seen.gpus == healthy(node)
        assert gpus(driver.look()) == healthy(node)


def devices(pid: int | None) -> list[str]:
    """The driver's devices that a process has open."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(descriptor.readlink().name)
        except FileNotFoundError:
            continue
    return sorted(name for name in links if name.startswith("nvidia"))


class TestHandles:
    def test_no_device_is_open_between_looks(self, node: SimulatedNode, driver: Driver) -> None:
        for _ in range(3):
            assert gpus(driver.look()) == healthy(node)
            assert devices(driver.child_pid) == []

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("nvml/gpu2/error", 15),
            ("nvml/gpu2/error.nvmlDeviceGetUUID", 999),
            ("nvml/error/nvmlDeviceGetCount_v2", 999),
            ("nvml/error/nvmlSystemGetDriverVersion", 17),
            ("nvml/count", 4294967295),
            ("nvml/gpu0/bus_id", "nonsense"),
        ],
    )
    def test_none_is_open_after_a_look_that_failed_either(
        self, node: SimulatedNode, driver: Driver, path: str, value: object
    ) -> None:
        node.write_value(path, value)
        driver.look()

        assert devices(driver.child_pid) == []

    def test_they_are_open_while_a_look_lasts_and_gone_when_it_was_ended(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        driver.look()
        child = driver.child_pid
        assert child
        node.hang("nvmlDeviceGetName")
        looking = threading.Thread(target=driver.look)
        looking.start()
        seen: list[str] = []
        while "nvidia0" not in seen and looking.is_alive():
            seen = devices(child)
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        looking.join()

        assert seen == ["nvidia0", "nvidiactl"]
        assert Path(f"/proc/{child}").exists() is False


class TestDriverChanges:
    def test_a_new_version_is_told_once_and_then_looked_at_with_its_own_library(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        driver.look()
        node.driver_unload()
        node.driver_load("580.65.06")

        first, second = driver.look(), driver.look()

        assert first.answer == Unobserved("DriverBeingChanged", "driver 570.133.20 became 580.65.06")
        assert gpus(second) == healthy(node)
        assert isinstance(second.answer, Gpus)
        assert second.answer.driver_version == "580.65.06"
        assert second.answer.library.endswith("libnvidia-ml.so.580.65.06")

    def test_an_unloaded_driver_is_being_changed_then_not_loaded_then_back(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        driver.look()
        node.driver_unload()

        gone = [driver.look(), driver.look(), driver.look()]
        node.driver_load()
        back = driver.look()

        assert gone[0].answer == Unobserved("DriverBeingChanged", "driver 570.133.20 became unloaded")
        assert [cause(look) for look in gone[1:]] == ["DriverNotLoaded"] * 2
        assert gpus(back) == healthy(node)

    def test_a_driver_that_is_loaded_after_the_agent_started_is_seen_at_once(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        node.driver_unload()
        assert cause(driver.look()) == "DriverNotLoaded"

        node.driver_load()

        assert gpus(driver.look()) == healthy(node)

    def test_a_library_that_was_replaced_is_loaded_anew(self, node: SimulatedNode, driver: Driver) -> None:
        driver.look()
        node.install_library("570.133.20")

        look = driver.look()

        assert cause(look) == "DriverBeingChanged"
        assert detail(look).endswith("libnvidia-ml.so.570.133.20 was replaced")
        assert gpus(driver.look()) == healthy(node)

    def test_a_library_upgraded_without_its_driver_mismatches_until_the_reboot(
        self, node: SimulatedNode, driver: Driver
    ) -> None:
        driver.look()
        node.install_library("580.65.06")

        causes = [cause(driver.look()) for _ in range(3)]
        node.reboot()
        after = [driver.look(), driver.look()]

        assert causes == ["DriverBeingChanged", "DriverLibraryMismatch", "DriverLibraryMismatch"]
        assert cause(after[0]) == "DriverBeingChanged"
        assert gpus(after[1]) == healthy(node)

    def test_a_library_that_was_removed_is_said(self, node: SimulatedNode, driver: Driver) -> None:
        driver.look()
        for file in node.library.parent.iterdir():
            file.unlink()

        causes = [cause(driver.look()), cause(driver.look())]

        assert causes == ["DriverBeingChanged", "NvmlLibraryNotFound"]


# hardware.md 3.5: below a host's root, and below the GPU operator's driver container.
PLACES = [
    *(
        f"{root}{place}"
        for root in ("", "run/nvidia/driver/")
        for place in (
            "usr/lib64",
            "usr/lib/x86_64-linux-gnu",
            "usr/lib/aarch64-linux-gnu",
            "lib64",
            "lib/x86_64-linux-gnu",
            "lib/aarch64-linux-gnu",
        )
    ),
    "home/kubernetes/bin/nvidia/lib64",
    "opt/nvidia/lib64",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "usr/local/glibc/usr/lib",
]
SONAME = "libnvidia-ml.so.1"


@pytest.fixture
def library(node: SimulatedNode) -> Path:
    """The library's file, put where nothing looks for it; the usual place is empty."""
    away = node.root / "somewhere/else/libnvidia-ml.so.570.133.20"
    away.parent.mkdir(parents=True)
    (node.library.parent / "libnvidia-ml.so.570.133.20").rename(away)
    node.library.unlink()
    return away


class TestLibraryPlaces:
    @pytest.mark.parametrize("place", PLACES)
    def test_the_library_is_found_in_every_known_place(
        self, node: SimulatedNode, driver: Driver, library: Path, place: str
    ) -> None:
        (node.root / place).mkdir(parents=True, exist_ok=True)
        library.rename(node.root / place / SONAME)

        look = driver.look()

        assert isinstance(look.answer, Gpus), look.answer
        assert look.answer.library == str(node.root / place / SONAME)
        assert look.answer.gpus == healthy(node)

    @pytest.mark.parametrize(
        "links",
        [
            {"usr/lib64/" + SONAME: "/somewhere/else/libnvidia-ml.so.570.133.20"},
            {"usr/lib64/" + SONAME: "../../somewhere/else/libnvidia-ml.so.570.133.20"},
            {"usr/lib64/" + SONAME: "../../../../../../../../../somewhere/else/libnvidia-ml.so.570.133.20"},
            {
                "usr/lib64/" + SONAME: "/alternatives/nvml",
                "alternatives/nvml": "/somewhere/else/libnvidia-ml.so.570.133.20",
            },
            {
                "opt/nvidia": "/bundle",
                "bundle/lib64": "/somewhere/else",
                "somewhere/else/" + SONAME: "libnvidia-ml.so.570.133.20",
            },
            {"lib64": "/somewhere/else", "somewhere/else/" + SONAME: "./libnvidia-ml.so.570.133.20"},
            {
                "run/nvidia/driver": "/somewhere",
                "somewhere/lib64": "else/",
                "somewhere/else/" + SONAME: "/somewhere/./else/../else/libnvidia-ml.so.570.133.20",
            },
        ],
    )
    def test_links_of_the_hosts_tree_are_followed_inside_that_tree(
        self, node: SimulatedNode, driver: Driver, library: Path, links: dict[str, str]
    ) -> None:
        for path, target in links.items():
            (node.root / path).parent.mkdir(parents=True, exist_ok=True)
            (node.root / path).symlink_to(target)

        look = driver.look()

        assert isinstance(look.answer, Gpus), look.answer
        assert look.answer.library == str(library)

    @pytest.mark.usefixtures("library")
    def test_a_tree_without_a_library_says_so(self, node: SimulatedNode, driver: Driver) -> None:
        assert driver.look().answer == Unobserved(
            "NvmlLibraryNotFound", f"libnvidia-ml.so.1 lies nowhere under {node.root}"
        )

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("/gone/libnvidia-ml.so.1", "gone/libnvidia-ml.so.1: cannot open shared object file: No such file"),
            ("libnvidia-ml.so.1", "too many symbolic links"),
            ("/usr/lib64", "cannot read file data: Is a directory"),
        ],
    )
    @pytest.mark.usefixtures("library")
    def test_a_link_that_leads_to_no_library_is_named(
        self, node: SimulatedNode, driver: Driver, target: str, message: str
    ) -> None:
        (node.root / "usr/lib64").mkdir(parents=True)
        (node.root / "usr/lib64" / SONAME).symlink_to(target)

        look = driver.look()

        assert cause(look) == "NvmlLibraryNotFound"
        assert message in detail(look)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "file too short"),
            (b"This is a stub. Install the NVIDIA driver.\n" * 40, "invalid ELF header"),
            (b"\x7fELF" + b"\x00" * 2000, "wrong ELF class"),
        ],
    )
    @pytest.mark.usefixtures("library")
    def test_a_file_that_is_no_library_is_named(
        self, node: SimulatedNode, driver: Driver, content: bytes, message: str
    ) -> None:
        path = node.root / "usr/lib64" / SONAME
        path.parent.mkdir(parents=True)
        path.write_bytes(content)

        look = driver.look()

        assert cause(look) == "NvmlLibraryNotFound"
        assert str(path) in detail(look)
        assert message in detail(look)

    def test_a_bad_file_in_one_place_hides_no_good_one_in_another(
        self, node: SimulatedNode, driver: Driver, library: Path
    ) -> None:
        for place in ("usr/lib64", "lib64", "opt/nvidia/lib64"):
            (node.root / place).mkdir(parents=True)
        (node.root / "usr/lib64" / SONAME).write_bytes(b"a stub")
        (node.root / "lib64" / SONAME).symlink_to(SONAME)
        library.rename(node.root / "opt/nvidia/lib64" / SONAME)

        assert gpus(driver.look()) == healthy(node)

    def test_a_library_that_appears_later_is_found(self, node: SimulatedNode, driver: Driver, library: Path) -> None:
        assert cause(driver.look()) == "NvmlLibraryNotFound"

        (node.root / "usr/lib64").mkdir(parents=True)
        library.rename(node.root / "usr/lib64" / SONAME)

        assert gpus(driver.look()) == healthy(node)

    def test_the_loaders_own_path_comes_first(
        self, node: SimulatedNode, library: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (library.parent / SONAME).symlink_to(library.name)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
        (node.root / "usr/lib64").mkdir(parents=True)
        (node.root / "usr/lib64" / SONAME).write_bytes(b"never looked at")
        driver = Driver(node.root)

        look = driver.look()
        driver.end()

        assert isinstance(look.answer, Gpus), look.answer
        assert look.answer.library == str(library)

    def test_without_one_in_the_loaders_path_the_hosts_is_taken(self, node: SimulatedNode) -> None:
        if ctypes.util.find_library("nvidia-ml"):
            pytest.skip("this machine has a driver's library of its own")
        driver = Driver(node.root)

        look = driver.look()
        driver.end()

        assert gpus(look) == healthy(node)


PRINTS = """
#include <stdio.h>
__attribute__((constructor)) static void hello(void) { printf("hello from the driver\\n"); fflush(stdout); }
int nvmlInitWithFlags(unsigned flags) { printf("{\\"gpus\\": []}\\n"); fflush(stdout); return (int)flags + 9; }
const char *nvmlErrorString(int result) { (void)result; return "Driver Not Loaded"; }
"""


class TestChild:
    def test_a_library_that_prints_does_not_write_into_the_answers(
        self, node: SimulatedNode, driver: Driver, library: Path
    ) -> None:
        source = library.with_suffix(".c")
        source.write_text(PRINTS)
        (node.root / "usr/lib64").mkdir(parents=True)
        made = node.root / "usr/lib64" / SONAME
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]
        subprocess.run([*find_compiler(), *flags, "-o", made, source], check=True)

        for _ in range(2):
            assert driver.look().answer == Unobserved("DriverNotLoaded", f"NVML: Driver Not Loaded ({made})")

    def test_a_library_without_a_function_could_not_look(
        self, node: SimulatedNode, driver: Driver, library: Path
    ) -> None:
        source = library.with_suffix(".c")
        source.write_text("int nothing_of_nvml;")
        (node.root / "usr/lib64").mkdir(parents=True)
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]
        subprocess.run([*find_compiler(), *flags, "-o", node.root / "usr/lib64" / SONAME, source], check=True)

        look = driver.look()

        assert cause(look) == "NvmlError"
        assert "(error 13, " in detail(look)

    def test_it_is_the_first_that_the_oom_killer_takes(self, driver: Driver) -> None:
        driver.look()

        assert Path(f"/proc/{driver.child_pid}/oom_score_adj").read_text() == "1000\n"

    def test_it_ends_when_nobody_asks_any_more(self, node: SimulatedNode) -> None:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "healthcheck.probes.nvml_child", node.root, "root-only"],
            input=b"look\nlook\n",
            capture_output=True,
            check=True,
        )

        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert [len(answer["gpus"]) for answer in answers] == [8, 8]
        assert done.stderr == b""

    def test_ending_the_driver_ends_its_child(self, driver: Driver) -> None:
        driver.look()
        child = driver.child_pid

        assert driver.end() is None
        assert (driver.child_pid, Path(f"/proc/{child}").exists()) == (None, False)


class TestProbe:
    def test_the_probe_asks_the_hosts_driver(self, node: SimulatedNode, driver: Driver) -> None:
        assert gpus(read_driver(Host(node.root, driver.look))) == healthy(node)

    def test_a_host_whose_driver_nobody_may_ask_could_not_look(self, node: SimulatedNode) -> None:
        with pytest.raises(ProbeError, match="this look does not ask the driver"):
            read_driver(Host(node.root))


def line(**changes: object) -> bytes:
    answer = {"library": "/lib/nvml", "driver_version": "570", "gpus": [{"index": 0, "error": 0}]}
    return json.dumps(answer | changes).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        b"null",
        b"7",
        b"[]",
        b'"gpus"',
        b"{}",
        b"\xff\xfe",
        b'{"gpus": 1}\n{"gpus": 2}',
        line(gpus=7),
        line(gpus=["x"]),
        line(gpus=[{}]),
        line(gpus=[{"index": "0", "error": 0}]),
        line(gpus=[{"index": 0, "error": None}]),
        line(gpus=[{"index": 0, "error": 0, "bus_id": "x"}]),
        line(gpus=[{"index": 0, "error": 0, "bus_id": 7}]),
        line(gpus=[{"index": 0, "error": 0, "recovery_action": "reset"}]),
        line(gpus=[{"index": 0, "error": 0, "recovery_error": None}]),
        line(gpus=[{"index": 0, "error": 0, "instances": 7}]),
        line(gpus=[{"index": 0, "error": 0, "instances": [None]}]),
        b'{"library": "/lib/nvml", "error": 9}',
    ],
)
def test_a_line_that_is_no_answer_is_nonsense_but_came_back(raw: bytes) -> None:
    answer = read_answer(raw)

    assert isinstance(answer.gpus, Unobserved)
    assert (answer.gpus.cause, answer.answered_by_driver) == ("NvmlNonsense", True)


def test_a_whole_line_is_read() -> None:
    assert read_answer(line()).gpus == Gpus("570", "/lib/nvml", (Gpu(0),))
