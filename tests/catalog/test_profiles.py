"""`instance-profiles.conf`, line by line."""

from __future__ import annotations

import re

import pytest

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile, ProfileError, find_profile, parse_profiles
from gpu_healthcheck.healthcheck.settings.reading import packaged_profiles

P5 = InstanceProfile("p5.48xlarge", 8, 32, True, "efa")


@pytest.mark.parametrize(
    ("text", "profiles"),
    [
        ("", {}),
        ("# nothing but a comment\n\n   \n", {}),
        ("p5.48xlarge|8|32|true|efa", {"p5.48xlarge": P5}),
        ("  p5.48xlarge | 8 | 32 | true | efa   # as EC2 says\r\n", {"p5.48xlarge": P5}),
        ("ml.p5.48xlarge|8|32|true|efa", {"p5.48xlarge": P5}),
        ("g6.xlarge|1|0|false|-", {"g6.xlarge": InstanceProfile("g6.xlarge", 1, 0, False, "")}),
        ("on-prem-h100|8|0|true|", {"on-prem-h100": InstanceProfile("on-prem-h100", 8, 0, True, "")}),
        ("p5.48xlarge|8|32|true|efa|0", {"p5.48xlarge": P5}),
        ("x|4|0|true|-| 8 # by RoCE", {"x": InstanceProfile("x", 4, 0, True, "", 8)}),
        ("none|0|0|false|", {"none": InstanceProfile("none", 0, 0, False, "")}),
    ],
)
def test_a_line_is_a_profile(text: str, profiles: dict[str, InstanceProfile]) -> None:
    assert parse_profiles(text) == profiles


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "p5.48xlarge|8|32|true",
            "x.conf:1: 'p5.48xlarge|8|32|true' has 4 fields; write type|gpus|efa|nvlink|provider[|roce]",
        ),
        ("p5.48xlarge|8|32|true|efa|more", "x.conf:1: roce 'more'; write a whole number from 0 to 4096"),
        ("p5.48xlarge|8|32|true|efa|", "x.conf:1: roce ''; write a whole number"),
        ("p5.48xlarge|8|32|true|efa|8|8", "x.conf:1: 'p5.48xlarge|8|32|true|efa|8|8' has 7 fields"),
        ("p5.48xlarge 8 32 true efa", "x.conf:1: 'p5.48xlarge 8 32 true efa' has 1 fields"),
        ("# one\n\n|8|32|true|efa", "x.conf:3: type ''; write an instance type such as p5.48xlarge"),
        ("P5.48XLARGE|8|32|true|efa", "x.conf:1: type 'P5.48XLARGE'; write an instance type"),
        ("p5/48|8|32|true|efa", "x.conf:1: type 'p5/48'; write"),
        ("p5|eight|32|true|efa", "x.conf:1: gpus 'eight'; write a whole number from 0 to 4096"),
        ("p5|-8|32|true|efa", "x.conf:1: gpus '-8'; write"),
        ("p5|8.0|32|true|efa", "x.conf:1: gpus '8.0'; write"),
        ("p5|8||true|efa", "x.conf:1: efa ''; write"),
        ("p5|8|4097|true|efa", "x.conf:1: efa '4097'; write"),
        ("p5|8|00000000099999|true|efa", "x.conf:1: efa '00000000099999'; write"),
        (f"p5|8|{'9' * 5000}|true|efa", "x.conf:1: efa '999"),
        ("p5|\N{ARABIC-INDIC DIGIT EIGHT}|32|true|efa", "x.conf:1: gpus"),
        ("p5|8|32|yes|efa", "x.conf:1: nvlink 'yes'; write true or false"),
        ("p5|8|32|True|efa", "x.conf:1: nvlink 'True'; write"),
        ("p5|8|32|true|efa\np5|8|16|true|efa", "x.conf:2: 'p5' already has a line above"),
        ("p5|8|32|true|efa\nml.p5|8|16|true|efa", "x.conf:2: 'p5' already has a line above"),
        ("\0\0\0\0", "x.conf:1: '\\x00\\x00\\x00\\x00' has 1 fields"),
        ("#" * (1 << 20) + "#", "x.conf: 1048577 characters; at most 1048576 are read"),
    ],
)
def test_a_bad_line_is_named_with_its_value_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(message)):
        parse_profiles(text, "x.conf")


@pytest.mark.parametrize(
    ("instance_type", "profile"),
    [("p5.48xlarge", P5), ("ml.p5.48xlarge", P5), ("p5.4xlarge", None), ("", None), ("ml.", None), ("ml.ml.p5", None)],
)
def test_an_unknown_type_has_no_expectation(instance_type: str, profile: InstanceProfile | None) -> None:
    assert find_profile({"p5.48xlarge": P5}, instance_type) == profile


# The types that the seed knew and those that are easily got wrong.
@pytest.mark.parametrize(
    ("instance_type", "gpus", "efa", "nvlink"),
    [
        ("p3dn.24xlarge", 8, 1, True),
        ("p4d.24xlarge", 8, 4, True),
        ("p4de.24xlarge", 8, 4, True),
        ("p5.48xlarge", 8, 32, True),
        ("p5.4xlarge", 1, 1, False),
        ("p5e.48xlarge", 8, 32, True),
        ("p5en.48xlarge", 8, 16, True),
        ("p6-b200.48xlarge", 8, 8, True),
        ("p6-b300.48xlarge", 8, 16, True),
        ("g4dn.16xlarge", 1, 1, False),
        ("g5.48xlarge", 8, 1, False),
        ("g5g.metal", 2, 0, False),
        ("g6.xlarge", 1, 0, False),
        ("g6.48xlarge", 8, 1, False),
        ("gr6.8xlarge", 1, 1, False),
        ("g6e.48xlarge", 8, 4, False),
        ("g7e.24xlarge", 4, 2, False),
        ("p6e-gb200.36xlarge", 4, 0, True),
        ("p6e-gb300r.36xlarge", 4, 0, True),
        ("p6e-gb300.36xlarge", 4, 0, True),
        ("g6f.4xlarge", 0, 0, False),
    ],
)
def test_the_packaged_table_says_what_ec2_says(instance_type: str, gpus: int, efa: int, nvlink: bool) -> None:
    profile = packaged_profiles()[instance_type]

    assert (profile.gpus, profile.efa, profile.nvlink) == (gpus, efa, nvlink)


def test_a_type_by_roce_has_no_provider_of_efa() -> None:
    providers = {name: profile.provider for name, profile in packaged_profiles().items() if name.startswith("p6e-")}
    assert providers == {"p6e-gb200.36xlarge": "efa", "p6e-gb300r.36xlarge": "", "p6e-gb300.36xlarge": "efa"}
