"""Choice of the cluster. kubectl's behaviour was read in client-go and tried with kubectl 1.36."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_healthcheck.healthcheck.cluster import kubeconfig
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.kubeconfig import (
    Access,
    KubeconfigError,
    SelectedContext,
    choose,
    context_and_user,
    context_names,
    namespace_of,
)

NOTHING_SAID = Access()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder of a person, outside of any pod and without a kubeconfig."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home/.kube").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The token of its account."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(kubeconfig, "_ACCOUNT", tmp_path / "token")
    (tmp_path / "token").write_text("token")
    return tmp_path / "token"


@pytest.mark.parametrize(
    ("contexts", "context", "expected"),
    [
        ({"one": "team"}, "", "team"),
        ({"one": "team", "other": "vision"}, "other", "vision"),
        ({"one": None}, "", "default"),
        ({"one": ""}, "", "default"),
        ({}, "", "default"),
    ],
)
def test_the_namespace_is_that_of_the_context(
    home: Path, contexts: dict[str, str | None], context: str, expected: str
) -> None:
    content = {
        "current-context": next(iter(contexts), ""),
        "contexts": [
            {
                "name": name,
                "context": {"cluster": "c", "user": "u"} | ({} if namespace is None else {"namespace": namespace}),
            }
            for name, namespace in contexts.items()
        ],
    }
    (home / ".kube/config").write_text(yaml.safe_dump(content))

    assert namespace_of(Access(context=context)) == expected


def test_the_namespace_of_a_pod_is_that_of_its_account(pod: Path) -> None:
    (pod.parent / "namespace").write_text("jobs\n")

    assert namespace_of(Access()) == "jobs"


def write(path: Path, *contexts: str, current: str | None = "") -> str:
    """Write a kubeconfig with a cluster and a user for each context.

    `current` is the current context. By default it is the first context, and with None there is none.
    """
    message = contexts[0] if current == "" and contexts else current
    document = {
        "current-context": message or "",
        "clusters": [{"name": context, "cluster": {"server": f"https://{context}:1"}} for context in contexts],
        "users": [{"name": f"{context}-user", "user": {"token": context}} for context in contexts],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": f"{context}-user"}} for context in contexts
        ],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def in_words(chosen: SelectedContext | None) -> str:
    return chosen.context if chosen else "account"


@pytest.mark.usefixtures("pod")
class TestInAPod:
    def test_without_a_kubeconfig_it_is_the_account(self) -> None:
        assert (choose(NOTHING_SAID), choose(None)) == (None, None)

    def test_unreadable_account_is_named(self, pod: Path) -> None:
        pod.unlink()
        pod.symlink_to(pod.name)
        with pytest.raises(KubeconfigError, match=f"the pod's account: {pod}: Too many levels"):
            choose(NOTHING_SAID)

    def test_kubeconfig_comes_before_the_account_for_everybody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBECONFIG", write(tmp_path / "a", "far"))

        assert (in_words(choose(NOTHING_SAID)), in_words(choose(None))) == ("far", "far")

    def test_a_file_of_the_home_comes_before_the_account_for_a_person_and_not_for_a_program(self, home: Path) -> None:
        write(home / ".kube/config", "mine")

        assert (in_words(choose(NOTHING_SAID)), in_words(choose(None))) == ("mine", "account")

    def test_an_option_comes_before_all_else(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", write(tmp_path / "a", "far", "near"))

        assert in_words(choose(Access(context="near"))) == "near"
        assert in_words(choose(Access(kubeconfig=write(tmp_path / "b", "other")))) == "other"

    def test_unknown_context_is_not_the_account(self) -> None:
        with pytest.raises(KubeconfigError, match=r"no context 'near' in ~/.kube/config: there is none"):
            choose(Access(context="near"))

    @pytest.mark.parametrize("content", ["", "\n", "apiVersion: v1\nkind: Config\n", "current-context: ''\n"])
    def test_a_kubeconfig_that_names_nothing_leaves_the_account(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
    ) -> None:
        (tmp_path / "empty").write_text(content)
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'empty'}:/nowhere")

        assert choose(NOTHING_SAID) is None

    def test_a_program_without_its_token_uses_no_other_credentials(self, pod: Path, home: Path) -> None:
        write(home / ".kube/config", "mine")
        pod.unlink()

        assert (in_words(choose(None)), in_words(choose(NOTHING_SAID))) == ("account", "mine")
        with pytest.raises(ClusterError, match="can't connect to a cluster"):
            connect()


class TestOutside:
    def test_kubeconfig_comes_before_the_home(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(home / ".kube/config", "mine")
        assert in_words(choose(None)) == in_words(choose(NOTHING_SAID)) == "mine"

        monkeypatch.setenv("KUBECONFIG", write(tmp_path / "a", "far"))
        assert in_words(choose(None)) == in_words(choose(NOTHING_SAID)) == "far"

    def test_of_several_files_the_first_that_says_something_has_the_word(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = write(tmp_path / "a", "one", current=None), write(tmp_path / "b", "two", "one")
        third = write(tmp_path / "c", "three")
        monkeypatch.setenv("KUBECONFIG", f"/nowhere:{first}:{second}::{third}")

        assert choose(NOTHING_SAID) == SelectedContext((first, second, third), "two", "two-user")
        assert connect(NOTHING_SAID).configuration.host == "https://two:1"
        assert connect(Access(context="three")).configuration.host == "https://three:1"

    def test_a_file_that_is_asked_for_has_to_be_there(self) -> None:
        with pytest.raises(KubeconfigError, match="kubeconfig /nowhere: No such file or directory"):
            choose(Access(kubeconfig="/nowhere"))

    def test_unreadable_file_is_not_skipped(self, home: Path) -> None:
        (home / ".kube/config").symlink_to("config")
        for ask in (choose, context_names):
            with pytest.raises(KubeconfigError, match=r"kubeconfig ~/\.kube/config: Too many levels of symbolic links"):
                ask(NOTHING_SAID)

    def test_a_home_that_is_no_folder_has_no_kubeconfig(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/dev/null")
        with pytest.raises(KubeconfigError, match=r"no file ~/\.kube/config, and this is no pod"):
            choose(NOTHING_SAID)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[]", "kubeconfig {}: not a kubeconfig"),
            ("[", "kubeconfig {}: while parsing a flow node"),
            ("\x00", "kubeconfig {}: unacceptable character"),
            ("current-context: a\ncontexts: 7\n", "kubeconfig {}: contexts: a list of objects is expected"),
            ("current-context: a\ncontexts: [7]\n", "kubeconfig {}: contexts: a list of objects is expected"),
            ("current-context: a\ncontexts: [{name: b}]\n", "no context 'a' in {}: there are b"),
            ('{"clusters": 5}', "no context in {}"),
            ("contexts: [{name: b}, {name: c}]\n", "no current context in {}; --context takes b, c"),
        ],
    )
    def test_unusable_file_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
    ) -> None:
        path = tmp_path / "config"
        path.write_text(content)
        monkeypatch.setenv("KUBECONFIG", str(path))

        with pytest.raises(ClusterError) as caught:
            connect(NOTHING_SAID)
        assert str(caught.value).startswith(f"can't connect to a cluster: {message.format(path)}")
        assert "\n" not in str(caught.value)

    def test_without_any_it_says_where_it_looked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        message = "and this is no pod: use --kubeconfig, or set KUBECONFIG"
        with pytest.raises(KubeconfigError, match=f"^no file ~/.kube/config, {message}$"):
            choose(NOTHING_SAID)
        monkeypatch.setenv("KUBECONFIG", "/nowhere:/elsewhere")
        with pytest.raises(KubeconfigError, match=f"^no file /nowhere, /elsewhere, {message}$"):
            choose(None)

    def test_a_user_without_a_home_gets_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "")

        with pytest.raises(KubeconfigError, match=r"no file ~/\.kube/config"):
            choose(NOTHING_SAID)


def test_a_kubeconfig_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "_LONGEST_FILE", 1 << 20)
    file = tmp_path / "config"
    file.write_text(" " * (1 << 20) + "\n")

    with pytest.raises(KubeconfigError, match=f"^kubeconfig {file}: over 1 MiB, which is the limit$"):
        choose(Access(kubeconfig=str(file)))


def test_the_user_is_the_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert context_and_user(NOTHING_SAID) == ("", "")
    monkeypatch.setenv("KUBECONFIG", write(tmp_path / "a", "far", "near"))
    assert context_and_user(NOTHING_SAID) == ("far", "far-user")
    assert context_and_user(Access(context="near")) == ("near", "near-user")


@pytest.mark.usefixtures("pod")
def test_in_a_pod_the_user_has_no_name() -> None:
    assert context_and_user(NOTHING_SAID) == ("", "")
